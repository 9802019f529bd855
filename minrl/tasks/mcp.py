"""The tools of an MCP server (modelcontextprotocol.io) as functions: `--tools "mcp:python path/to/server.py"`.

Each process of a run starts the command once, when its tools are first needed, and speaks to it over its stdin and
stdout; all episodes share it. A server that ends during a run is reported, and the next call starts it again.
"""

import asyncio
import atexit
import json
import logging
import os
import shlex
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

from loguru import logger

from minrl.dataflow import UserError, require
from minrl.tasks.conventions import begun, event_loop
from minrl.utils.files import installed
from minrl.utils.text import one_line, unmarked

START_S, END_S = 60.0, 10.0
"""Longest wait for an answer of a server that starts, and for its end."""


@dataclass(frozen=True)
class McpTool:
    """A tool of a server, which is called in a thread that waits for it."""

    server: "Server"
    schema: dict[str, Any]
    seconds: float
    waits = True

    def __call__(self, **arguments: Any) -> str:  # noqa: ANN401 - as the model has them
        """What the tool says. Raises what the library does, and RuntimeError if the tool failed."""
        result = self.server.call(self.schema["function"]["name"], arguments, self.seconds)
        text = "\n".join(getattr(one, "text", f"[{one.type}]") for one in result.content)
        if result.is_error:
            raise RuntimeError(text)
        return text


class Server:
    """The server of a command in this process."""

    def __init__(self, command: str) -> None:
        self.command, self._lock = command, Lock()
        self._client: Any = None  # while the server runs
        atexit.register(self._end)

    def tools(self, seconds: float) -> Sequence[McpTool]:
        """Its tools, with the longest time of a call. Starts it if it does not run."""
        self._running()
        return [McpTool(self, schema, seconds) for schema in self._schemas]

    def call(self, name: str, arguments: dict[str, Any], seconds: float) -> Any:  # noqa: ANN401 - the library's
        """The result of a tool. One call starts a server that ended."""
        client, library = self._running(), load_library()
        call = client.call_tool(name, arguments, read_timeout_seconds=seconds)
        try:
            return begun(call).result()
        except library.MCPError as error:
            with self._lock:
                if error.code == library.types.CONNECTION_CLOSED and self._client is client:
                    logger.warning(f"the MCP server ended, and is started again: {self.command}: {self._why(error)}")
                    self._end()
            raise

    def _running(self) -> Any:  # noqa: ANN401 - the library's client
        with self._lock:
            if self._client is None:
                started: Future = Future()
                self._printed = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - as long as it runs
                self._library, self._stop = load_library(), asyncio.Event()
                self._ended = begun(self._live(started))
                self._client, self._schemas = started.result()
            return self._client

    async def _live(self, started: Future) -> None:
        """Start the server and keep the connection until `_end`: the task that opened it has to close it."""
        program, *arguments = shlex.split(self.command)
        # with the environment that a shell would give it
        server = self._library.StdioServerParameters(command=program, args=arguments, env=dict(os.environ))
        try:
            transport = self._library.stdio_client(server, errlog=self._printed)
            async with self._library.Client(transport, read_timeout_seconds=START_S) as client:
                started.set_result((client, await schemas_of(client)))
                await self._stop.wait()
        except BaseException as error:  # of the library, which may be cancelled, and of the system
            if started.done():
                raise
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            started.set_exception(UserError(f"the MCP server does not start: {self.command}: {self._why(error)}"))

    def _why(self, error: BaseException) -> str:
        """The error, and the last line that the server printed on stderr."""
        self._printed.seek(0)
        lines = [line for line in self._printed if line.strip()]
        return one_line(f"{error}; it printed: {lines[-1]:.200}" if lines else str(error))

    def _end(self) -> None:
        if self._client is not None:
            self._client = None
            event_loop().call_soon_threadsafe(self._stop.set)
            wait([self._ended], END_S)


server = cache(Server)
"""The server of a command, of which a process has one."""


async def schemas_of(client: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - the library's
    """The schemas of a server's tools, as chat templates take them, without special tokens."""
    page = await client.list_tools()
    found = [*page.tools]
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    require(bool(found), "it has no tools")
    functions = [
        {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": {"type": "object", "properties": {}, **tool.input_schema},
        }
        for tool in found
    ]
    return [json.loads(unmarked(json.dumps({"type": "function", "function": one}))) for one in functions]


@cache
def load_library() -> Any:  # noqa: ANN401 - the library
    """The client of MCP. It says once, and without a traceback, that a server prints what is no message on stdout."""
    with installed("mcp", "'mcp>=2,<3'"):
        import mcp
    seen = set[str]()

    def is_first(record: logging.LogRecord) -> bool:
        known, error = len(seen), record.exc_info and record.exc_info[1]
        seen.add(record.msg)
        if error:
            record.msg, record.exc_info = f"{record.msg}: {one_line(str(error)):.300}", None
        return len(seen) > known

    logging.getLogger("mcp.client.stdio").addFilter(is_first)
    return mcp

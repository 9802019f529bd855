"""A real chat endpoint on this machine that answers as a test says."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


def answer(*texts, finish_reason="stop"):
    """What an endpoint says whose model wrote these texts."""
    choices = [
        {"index": i, "finish_reason": finish_reason, "message": {"role": "assistant", "content": text}}
        for i, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        """The client may have given up."""


class ChatServer:
    """Answers each request with what `reply(body)` returns: a dictionary, or (status, headers, text)."""

    def __init__(self, reply, port=0):
        self.reply, self.asked, self.headers = reply, [], []
        self.lock, self.open, outer = threading.Lock(), set(), self
        self.models = ["m"]  # that it lists

        class Handler(BaseHTTPRequestHandler):
            def setup(self):
                super().setup()
                outer.open.add(self.connection)

            def do_POST(self):
                body = outer.read(self.rfile.read(int(self.headers["Content-Length"] or 0)))
                with outer.lock:
                    outer.asked.append(body)
                    outer.headers.append(self.headers)
                said = outer.respond(urlsplit(self.path).path, body)
                status, headers, text = said if isinstance(said, tuple) else (200, {}, json.dumps(said))
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                listed = [{"id": name, "object": "model", "created": 1, "owned_by": "me"} for name in outer.models]
                self.wfile.write(json.dumps({"object": "list", "data": listed}).encode())

            def log_message(self, *_):
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()  # soon told to end

    def read(self, text):
        """The body of a request."""
        return json.loads(text or "{}")

    def respond(self, path, body):
        return self.reply(body)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def in_turn(*replies):
    """One reply after the other, the last for ever."""
    left = list(replies)
    return lambda body: left.pop(0) if len(left) > 1 else left[0]

"""A real chat endpoint on this machine that answers as a test says."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def answer(*texts, finish_reason="stop"):
    """What an endpoint says whose model wrote these texts."""
    choices = [
        {"index": i, "finish_reason": finish_reason, "message": {"role": "assistant", "content": text}}
        for i, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}


class ChatServer:
    """Answers each request with what `reply(body)` returns: a dictionary, or (status, headers, text)."""

    def __init__(self, reply):
        self.reply, self.asked, self.keys, self.in_flight, self.most = reply, [], [], 0, 0
        self.lock, outer = threading.Lock(), self
        self.models = ["m"]  # that it lists

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    outer.asked.append(body)
                    outer.keys.append(self.headers["Authorization"])
                    outer.in_flight += 1
                    outer.most = max(outer.most, outer.in_flight)
                try:
                    said = outer.reply(body)
                finally:
                    with outer.lock:
                        outer.in_flight -= 1
                status, headers, text = said if isinstance(said, tuple) else (200, {}, json.dumps(said))
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # the client may have given up
                    self.wfile.write(text.encode())

            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                listed = [{"id": name, "object": "model", "created": 1, "owned_by": "me"} for name in outer.models]
                self.wfile.write(json.dumps({"object": "list", "data": listed}).encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()  # soon told to end

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def in_turn(*replies):
    """One reply after the other, the last for ever."""
    left = list(replies)
    return lambda body: left.pop(0) if len(left) > 1 else left[0]

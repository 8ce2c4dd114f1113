"""A stand-in for the Hugging Face hub: it makes repositories and takes commits, over HTTP."""

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

TOKEN = "hf_of-the-tests"


class Hub(ThreadingHTTPServer):
    """A server with the files of its repositories; `refuses_commits` answers each commit with 403."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = {}
        self.private = {}
        self.requests = []
        self.refuses_commits = False
        self.address = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(self.path)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer(401, {"error": "Invalid username or password."})
            return
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts == ["api", "repos", "create"]:
            self.create(json.loads(content))
        elif parts == ["api", "validate-yaml"]:
            metadata = yaml.safe_load(json.loads(content)["content"].split("---")[1])
            errors = [] if metadata.get("library_name") else [{"message": "library_name is missing"}]
            self.answer(400 if errors else 200, {"errors": errors, "warnings": []})
        elif parts[-2:] == ["preupload", "main"]:
            files = json.loads(content)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self.answer(200, {"files": modes})
        elif self.server.refuses_commits:
            self.answer(403, {"error": "You are not allowed to write to this repository."})
        else:
            self.commit("/".join(parts[2:4]), [json.loads(line) for line in content.splitlines()])

    def create(self, wanted):
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.server.repositories:
            self.answer(409, {"error": "You already created this model repo", "url": f"{self.server.address}/{name}"})
            return
        self.server.repositories[name] = {}
        self.server.private[name] = wanted.get("visibility") == "private"
        self.answer(200, {"url": f"{self.server.address}/{name}"})

    def commit(self, name, lines):
        files = {line["value"]["path"]: line["value"]["content"] for line in lines if line["key"] == "file"}
        self.server.repositories[name] |= {path: base64.b64decode(text) for path, text in files.items()}
        commit = {"commitUrl": f"{self.server.address}/{name}/commit/1", "commitOid": "1" * 40}
        self.answer(200, {"success": True, **commit})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def hub_server():
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()

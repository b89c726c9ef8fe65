import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from notify_webhook import NotifyWebhook

from trainbus.testing import InjectedFault, parametrize_with_checks, raise_at, tiny_trainer


@parametrize_with_checks([NotifyWebhook, lambda: NotifyWebhook("http://127.0.0.1:9")], budget=5000)
def test_conforms(check):
    check()


@pytest.fixture
def service(monkeypatch):
    """A server on this machine, and the messages that it received."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format, *args):
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()


def test_a_run_is_told(tiny_run, service):
    url, received = service
    tiny_run(NotifyWebhook(url), run_name="demo")
    assert sorted(received) == [
        "demo: training begins at step 0 of 6",
        "demo: training ends. stopped at step 6 by StopAtMaxSteps: all 6 steps are done",
    ]


def test_a_failure_is_told(tmp_path, service):
    url, received = service
    trainer = tiny_trainer(tmp_path, NotifyWebhook(url), run_name="demo")
    raise_at(3, error=lambda: InjectedFault("out of luck"))(trainer)
    with pytest.raises(InjectedFault):
        trainer.train()
    assert "demo: training fails after step 2: InjectedFault: out of luck" in received


def test_the_address_is_not_shown():
    assert "secret" not in repr(NotifyWebhook("https://hooks.example/secret"))

"""Somebody who talks to the explorer's server over HTTP."""

import http.client
import json
import time
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Visitor:
    """Somebody who talks to the server over HTTP."""

    address: str
    session: str

    def connect(self, timeout=300):
        return http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=timeout)

    def post(self, route, body, *, timeout=300, **headers):
        """The status and the events of the answer."""
        link = self.connect(timeout)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {} if isinstance(body, bytes) else {"content-type": "application/json"}
        link.request("POST", f"/api/{route}", data, {"x-vitrail-session": self.session, **kind, **headers})
        answer = link.getresponse()
        lines = answer.read().splitlines()
        link.close()
        return answer.status, [json.loads(line) for line in lines if line]

    def ask(self, route, **asked):
        status, events = self.post(route, {"id": "q", **asked})
        assert status == 200, events
        return events


def new_visitor(address):
    status, (answer,) = Visitor(address, "").post("session", {})
    assert status == 200
    return Visitor(address, answer["session"])


def quick_seconds(visitor):
    """How long a quick request takes now."""
    begun = time.monotonic()
    events = visitor.ask("explain", input="example:golf_ball", model="photo", methods=["gae"])
    assert events[-1].get("done"), events
    return time.monotonic() - begun

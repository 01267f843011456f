import http.client
from urllib.parse import urlsplit

import pytest
import torch
from browsing import chromium, visits
from http_visitor import new_visitor
from safetensors.torch import load_file
from saved_models import save_gpt2, save_llava, save_vit
from served_page import memory, served, server_process

from vitrail.apps.web import Limits, actions
from vitrail.apps.web.explaining import Explorer, Results
from vitrail.apps.web.guard import ASKS
from vitrail.apps.web.model_cache import ModelCache
from vitrail.apps.web.sessions import Sessions
from vitrail.apps.web.workers import Job


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    torch.manual_seed(0)
    return str(save_vit(tmp_path_factory.mktemp("app") / "vit"))


@pytest.fixture(scope="session")
def pickled(tmp_path_factory):
    """A folder whose weights are pickled, and that has no others."""
    place = save_vit(tmp_path_factory.mktemp("app") / "pickled")
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    return str(place)


@pytest.fixture(scope="session")
def writer(tmp_path_factory):
    """A language model with random weights."""
    torch.manual_seed(1)
    place = tmp_path_factory.mktemp("app") / "gpt2"
    save_gpt2(place)
    return str(place)


@pytest.fixture(scope="session")
def questioned(tmp_path_factory):
    """A model with random weights that answers questions about pictures."""
    torch.manual_seed(2)
    return str(save_llava(tmp_path_factory.mktemp("app") / "llava"))


@pytest.fixture(scope="session")
def models(tiny, writer, questioned):
    return ModelCache([tiny, writer, questioned])


@pytest.fixture
def explorer(models):
    limits = Limits()
    sessions = Sessions(limits)
    yield Explorer(models, sessions, Results(limits.results), limits)
    sessions.close()


@pytest.fixture
def session(explorer):
    return explorer.sessions.new()


@pytest.fixture
def do(explorer, session):
    """A function that runs an action to its end: its events."""

    def run(name, job=None, owner=None, **asked):
        ask = ASKS[name](id="a", **asked)
        steps = actions.ACTIONS[name](explorer, owner or session, ask, job or Job(session.id))
        return [step for step in steps if isinstance(step, dict)]

    return run


@pytest.fixture(scope="session")
def page(tiny, pickled, writer, questioned):
    """The address of a page as `vitrail app` serves it, and what it writes to its terminal."""
    allowed = [part for name in (tiny, pickled, writer, questioned) for part in ("--allow", name)]
    with served(*allowed, "--max-upload", "2") as found:
        yield found


@pytest.fixture(scope="session")
def started(page):
    """Bytes of memory that the server holds of its own when its model is there, before anything is asked.

    Pages of program files do not count: the kernel drops them when it likes, and maps between 280 and 500 MB of the
    same libraries, depending on how its cache holds them.
    """
    address = page[0]
    link = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)
    link.request("GET", "/api/models")
    assert link.getresponse().status == 200
    process = server_process(address)
    return memory(process, "RssAnon") + memory(process, "RssShmem")


@pytest.fixture(scope="session")
def ready(page, started):
    """The page's address once the model is there."""
    return page[0]


@pytest.fixture
def visitor(ready):
    return new_visitor(ready)


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def visit(browser, ready, page):
    """A function that opens the page; at the end nobody else was asked, and neither browser nor server has failed."""
    _, lines = page
    before = len(lines)
    with visits(browser, ready) as open_page:

        def open_here(where="", **more):
            opened = open_page(**more)
            opened.goto(ready + where)
            return opened

        yield open_here
    assert "Traceback" not in "".join(lines[before:])

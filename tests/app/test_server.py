"""The page over HTTP: who may ask, what is refused, and ten visitors at once."""

import socket
import threading
import urllib.error
import urllib.request

import pytest
from saved_models import save_vit
from served_page import served
from typer.testing import CliRunner

from vitrail.app import actions
from vitrail.app.actions import Asked
from vitrail.app.server import HEADERS, Settings, server
from vitrail.cli.app import app
from vitrail.errors import MissingExtraError, OptionError

gradio_client = pytest.importorskip("gradio_client", reason="gradio is not installed")
CONTROLS = ("recommended", 0.6, "Fire")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    save_vit(folder / "vit")
    return folder


@pytest.fixture(scope="module")
def address(place):
    with served("--allow", str(place / "vit"), "--max-upload", "1", strict=False) as found:
        yield found


def visitor(address):
    return gradio_client.Client(address, verbose=False, analytics_enabled=False)


def test_without_gradio_it_is_one_line_what_to_install(monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "gradio":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"vitrail\[app\]"):
        server(Settings())
    result = CliRunner().invoke(app, ["app"])
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        "error: the page is served by Gradio: pip install 'vitrail[app]'",
    )


def test_a_port_that_is_taken_is_said_so():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OptionError, match="--port"):
            server(Settings(port=taken.getsockname()[1]))


def test_it_answers_on_this_machine_only(address):
    assert address.startswith("http://127.0.0.1:")
    assert Settings().host == "127.0.0.1"


def test_every_answer_keeps_the_browser_from_asking_others(address):
    with urllib.request.urlopen(address) as answer:
        found = {name.lower(): value for name, value in answer.headers.items()}
        page = answer.read().decode()
    assert HEADERS.items() <= found.items()
    assert "fonts.googleapis" not in page


def test_a_name_from_elsewhere_is_refused(address):
    asked = urllib.request.Request(address, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(asked)


def test_only_allowed_models_are_opened(address, place):
    client = visitor(address)
    good = client.predict(str(place / "vit"), None, ["gae"], *CONTROLS, api_name="/image_model")
    assert "<img" in good[3]
    with pytest.raises(gradio_client.exceptions.AppError, match="not in the list"):
        client.predict("google/vit-base-patch16-224", None, ["gae"], *CONTROLS, api_name="/image_model")


def test_a_large_upload_is_refused(address, tmp_path):
    (tmp_path / "large.png").write_bytes(bytes(2 * 2**20))
    client = visitor(address)
    with pytest.raises(Exception, match=r"413|size"):
        client.predict(
            gradio_client.handle_file(tmp_path / "large.png"), "photo", None, ["gae"], *CONTROLS, api_name="/image_new"
        )


def test_a_broken_upload_is_words_and_not_an_error(address, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    found = visitor(address).predict(
        gradio_client.handle_file(tmp_path / "broken.png"), "photo", None, ["gae"], *CONTROLS, api_name="/image_new"
    )
    assert "damaged" in found[0]


def test_ten_visitors_at_once_get_their_own(address, house, text):
    sentences = [f"this film is number {number}, {word}" for number, word in enumerate(["dull", "good"] * 5)]
    found, errors = {}, []

    def visit(sentence):
        try:
            client = visitor(address)
            first = client.predict(sentence, "sentiment", None, ["attcat"], *CONTROLS, api_name="/text_new")
            again = client.predict("sentiment", first[2]["value"], ["attcat"], *CONTROLS, api_name="/text_methods")
            found[sentence] = (first[3], again[3])
        except Exception as error:  # a thread's error would be lost otherwise
            errors.append(error)

    threads = [threading.Thread(target=visit, args=[sentence]) for sentence in sentences]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    asked = Asked("text", "sentiment", None, ["attcat"], "recommended")
    for sentence in sentences:
        room = house.rooms.of(sentence)
        actions.take_text(house, room, sentence)
        expected = list(actions.explained(house, room, asked))[-1].maps
        assert words_of(found[sentence][0]) == words_of(expected)
        assert found[sentence][1] == found[sentence][0]


def words_of(html):
    """The tokens with their shades; the last digit of a score may differ from process to process."""
    import re

    return re.findall(r'style="([^"]*)" title="[^"]*">([^<]*)<', html)

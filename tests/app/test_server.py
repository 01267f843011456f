"""The page over HTTP: who may ask, what is refused, and ten visitors at once."""

import json
import socket
import threading
import urllib.error
import urllib.request

import pytest
from PIL import Image
from typer.testing import CliRunner

from vitrail.apps.cli.app import app
from vitrail.apps.web import actions
from vitrail.apps.web.actions import Asked
from vitrail.apps.web.guard import HEADERS, fetches
from vitrail.apps.web.server import Settings, server
from vitrail.errors import MissingExtraError, OptionError

gradio_client = pytest.importorskip("gradio_client", reason="gradio is not installed")
CONTROLS = ("recommended", 0.6, "Fire")


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


def test_only_allowed_models_are_opened(address, tiny):
    client = visitor(address)
    good = client.predict(None, tiny, None, ["gae"], *CONTROLS, api_name="/image_model")
    assert "<img" in good[3]
    for name in ("google/vit-base-patch16-224", "/etc", "../../photo"):
        refused = client.predict(None, name, None, ["gae"], *CONTROLS, api_name="/image_model")
        assert f"This page may not open &#x27;{name}&#x27;" in refused[0]


def test_a_large_upload_is_refused(address, tmp_path):
    (tmp_path / "large.png").write_bytes(bytes(2 * 2**20))
    client = visitor(address)
    with pytest.raises(Exception, match=r"413|size"):
        client.predict(
            gradio_client.handle_file(tmp_path / "large.png"),
            None,
            "photo",
            None,
            ["gae"],
            *CONTROLS,
            api_name="/image_new",
        )


def test_a_broken_upload_is_words_and_not_an_error(address, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    found = visitor(address).predict(
        gradio_client.handle_file(tmp_path / "broken.png"),
        None,
        "photo",
        None,
        ["gae"],
        *CONTROLS,
        api_name="/image_new",
    )
    assert "damaged" in found[0]


@pytest.mark.parametrize(("kind", "model", "name"), [("image", "photo", "mine.png"), ("text", "sentiment", "mine.txt")])
def test_files_that_nobody_uploaded_are_not_read(address, tmp_path, kind, model, name):
    Image.new("RGB", (8, 8)).save(tmp_path / name, "PNG")
    given = {"path": str(tmp_path / name), "meta": {"_type": "gradio.FileData"}}
    asked = json.dumps({"data": [given, None, model, None, ["gae"], *CONTROLS], "session_hash": "mallory"}).encode()
    call = urllib.request.Request(
        f"{address.rstrip('/')}/gradio_api/run/{kind}_new", asked, {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError, match="500"):
        urllib.request.urlopen(call)


@pytest.mark.parametrize(
    ("question", "refused"),
    [
        (b'{"data": [{"path": "https://elsewhere.example/a.png", "meta": {}}]}', True),
        (b'{"data": [1, [{"image": {"path": "\\u0068ttp://127.0.0.1:1/a.png"}}]]}', True),
        (b'{"data": [{"path": "ftp://elsewhere.example/a.png"}]}', True),
        (b'{"data": [{"path": "/tmp/gradio/a.png", "url": "http://127.0.0.1:7860/file=a.png"}]}', False),
        (b'{"data": ["see https://elsewhere.example"]}', False),
        (b"no json", False),
    ],
)
def test_a_file_named_by_an_address_is_a_question_that_is_not_passed_on(question, refused):
    assert fetches(question) is refused


def test_the_page_fetches_no_file_from_an_address(address):
    body = json.dumps({"data": [{"path": "http://127.0.0.1:9/a.png", "meta": {"_type": "gradio.FileData"}}]})
    headers = {"content-type": "application/json"}
    asked = urllib.request.Request(f"{address.rstrip('/')}/gradio_api/call/image_new", body.encode(), headers)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked, timeout=20)
    assert caught.value.code == 400
    assert b"fetches none" in caught.value.read()


def test_ten_visitors_at_once_get_their_own(address, house, text):
    sentences = [f"this film is number {number}, {word}" for number, word in enumerate(["dull", "good"] * 5)]
    found, errors = {}, []

    def visit(sentence):
        try:
            client = visitor(address)
            first = client.predict(sentence, None, "sentiment", None, ["attcat"], *CONTROLS, api_name="/text_new")
            again = client.predict(
                None, "sentiment", first[2]["value"], ["attcat"], *CONTROLS, api_name="/text_methods"
            )
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

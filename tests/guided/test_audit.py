import re

import pytest
import timm
import torch
from tiny_models import tiny

import vitrail
from vitrail import zoo
from vitrail.errors import InputError, OptionError, TargetError
from vitrail.evaluate.data.labelled import IMAGENETTE
from vitrail.tools.audit import Finding, class_of, distance, names_of, read_folders
from vitrail.tools.guide import open_shipped


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes with one picture of the other each, a damaged file and a folder that is no class."""
    root = tmp_path_factory.mktemp("labelled")
    for place in ("church", "golf_ball", "submarine", ".hidden"):
        (root / place).mkdir()
    open_shipped("temple").save(root / "church" / "temple.png")
    open_shipped("golf_ball").save(root / "church" / "<b>ball.png")
    open_shipped("golf_ball").save(root / "golf_ball" / "ball.png")
    open_shipped("temple").save(root / "golf_ball" / "temple.png")
    (root / "church" / "broken.jpg").write_bytes(b"\xff\xd8 not a picture")
    (root / "church" / "notes.txt").write_text("no picture")
    open_shipped("golf_ball").save(root / "submarine" / "ball.png")
    return root


@pytest.fixture(scope="module")
def found(folder):
    return vitrail.audit(zoo.load("photo").model, folder, batch=2)


def test_pictures_in_the_wrong_folder_are_found_the_surest_first(found):
    worst, other = found.findings
    assert (worst.path.name, found.name(worst.label), found.name(worst.rival)) == ("<b>ball.png", "church", "golf ball")
    assert (other.path.name, found.name(other.label), found.name(other.rival)) == ("temple.png", "golf ball", "church")
    assert worst.gap > other.gap + 0.01 > 0.9


def test_what_could_not_be_read_is_named_and_the_rest_goes_on(found):
    assert (found.images, found.agreed) == (4, 2)
    assert list(found.broken) == ["church/broken.jpg"]
    assert "cannot be read as an image" in found.broken["church/broken.jpg"]
    assert list(found.left_out) == ["submarine"]


def test_batches_change_nothing(found, folder):
    again = vitrail.audit(zoo.load("photo").model, folder, batch=16)
    assert [one.path for one in again.findings] == [one.path for one in found.findings]
    assert again.findings[0].apart == pytest.approx(found.findings[0].apart, abs=1e-4)  # single precision


def test_the_page_needs_nothing_beside_it_and_escapes_names(found, tmp_path):
    page = found.save(tmp_path / "audit.html").read_text()
    assert set(re.findall(r'src="([^,]*),', page)) == {"data:image/jpeg;base64"}
    assert re.findall(r"https?://", page) == []
    assert "<b>ball" not in page
    assert "church/&lt;b&gt;ball.png" in page
    assert page.count("<img") == 4
    assert "ranked by" in page
    assert found.to_html(most=0).count("<img") == 0


def test_pairs_are_ranked_by_what_lies_far_apart(tmp_path):
    def finding(label, rival, likely, apart):
        return Finding(tmp_path / "x.png", label, rival, 0.1, likely, apart)

    findings = (finding(0, 1, 0.8, 0.1), finding(0, 2, 0.5, 0.5), finding(0, 1, 0.9, 0.2))
    audit = vitrail.tools.audit.Audit(tmp_path, ("a", "b", "c"), "gae", 3, 0, findings, {}, {})
    assert [(p.label, p.rival, len(p.findings)) for p in audit.pairs] == [(0, 1, 2), (0, 2, 1)]
    assert audit.pairs[0].weight == pytest.approx(0.8 * 0.1 + 0.9 * 0.2)


def test_the_distance_is_that_of_the_two_centres():
    scores = torch.zeros(3, 4, dtype=torch.float64)
    scores[0, 0], scores[2, 0], scores[1, 3] = 1.0, 3.0, -5.0
    centre, other = (0.25 * (0.5 / 3) + 0.75 * (2.5 / 3), 0.125), (0.5, 0.875)
    expected = ((centre[0] - other[0]) ** 2 + (centre[1] - other[1]) ** 2) ** 0.5 / 2**0.5
    assert distance(scores) == pytest.approx(expected, abs=1e-12)
    assert distance(-7 * scores) == pytest.approx(expected, abs=1e-12)
    assert distance(scores.clamp(min=0)) == 0
    assert distance(0 * scores) == 0


def test_evidence_that_surrounds_a_place_is_not_far_from_it():
    scores = torch.full((5, 5), -1.0, dtype=torch.float64)
    scores[2, 2] = 1.0
    assert distance(scores) == pytest.approx(0, abs=1e-12)


def test_folders_are_named_by_name_index_or_wordnet_id():
    assert class_of("Golf_Ball", IMAGENETTE) == class_of("8", IMAGENETTE) == class_of("n03445777", IMAGENETTE) == 8
    thousand = names_of(timm.create_model("vit_tiny_patch16_224", depth=1))
    assert class_of("n02391049", thousand) == class_of("zebra", thousand) == 340
    with pytest.raises(TargetError, match="no class"):
        class_of("n03445777", ("tabby", "boxer"))


def test_a_limit_spreads_over_the_folder(tmp_path):
    (tmp_path / "church").mkdir()
    for number in range(10):
        (tmp_path / "church" / f"{number}.png").touch()
    kept = read_folders(tmp_path, IMAGENETTE, limit=3).pictures
    assert [path.stem for path, _ in kept] == ["0", "3", "6"]


def test_names_are_asked_of_the_model_or_of_the_user():
    assert names_of(zoo.load("photo").model) == IMAGENETTE
    with pytest.raises(InputError, match="pass class_names="):
        names_of(tiny("torchvision_vit"))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"method": "gae"}, OptionError, "gae has no sign"),
        ({"batch": 0}, OptionError, "at least 1"),
        ({"class_names": ("tabby", "boxer")}, InputError, "has no folder of pictures that is named like a class"),
    ],
)
def test_what_cannot_be_audited_is_refused(folder, options, error, words):
    with pytest.raises(error, match=words):
        vitrail.audit(zoo.load("photo").model, folder, **options)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        vitrail.audit(zoo.load("photo").model, tmp_path / "absent")

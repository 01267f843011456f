"""What goes wrong, takes long, is forbidden or belongs to another visitor, in a real browser."""

from bombs import bomb
from browsing import changed, choose, counts, needs_browser, panel, says, slide, tab, visits
from served_page import served

import vitrail

pytestmark = needs_browser
UPLOAD = "#image-upload input[type=file]"
BAD = {
    "cat.jpg": (b"\xff\xd8\xff\xe0 nothing more", "damaged"),
    "page.png": (b"<svg onload='alert(1)'></svg>", "no picture"),
    "bomb.png": (bomb(60_000, 60_000), "too large"),
}
NASTY = "<script>alert(1)</script> <img src=x onerror=alert(2)> a miracle"


def test_a_file_that_is_no_good_is_said_so_and_the_page_goes_on(visit, tmp_path):
    page = visit()
    for name, (data, words) in BAD.items():
        (tmp_path / name).write_bytes(data)
        page.set_input_files(UPLOAD, tmp_path / name)
        says(page, "#image-trouble [role=alert]", words)
    page.wait_for_timeout(1000)
    assert words in page.inner_text("#image-trouble")  # nothing that follows takes it away
    page.locator("#image-examples button").nth(1).click()
    says(page, "#image-answer", "church")
    counts(page, "#image-trouble [role=alert]", 0)


def test_a_file_that_is_too_large_is_not_even_sent(visit, tmp_path):
    page = visit()
    sent = []
    page.on("request", lambda request: sent.append(request.url) if request.post_data_buffer else None)
    (tmp_path / "large.png").write_bytes(bytes(2 * 2**20))
    page.set_input_files(UPLOAD, tmp_path / "large.png")
    page.get_by_text("exceed the maximum allowed size").wait_for()
    assert sent == []


def test_models_come_from_the_list_and_pickled_ones_stay_closed(visit, tiny, pickled):
    page = visit()
    page.get_by_role("button", name="More choices").filter(visible=True).click()
    page.locator("#image-model input").click()
    assert [one.split("\n")[-1] for one in page.get_by_role("option").all_inner_texts()] == ["photo", tiny, pickled]
    changed(page, page.get_by_role("option", name=tiny).click)
    assert "golf ball" not in page.inner_text("#image-answer")
    choose(page, "image-model", pickled)
    says(page, "#image-trouble [role=alert]", "could not be loaded")
    page.locator("#image-model input").fill("google/vit-base-patch16-224")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.input_value("#image-model input") in (tiny, pickled, "photo")
    choose(page, "image-model", "photo")
    says(page, "#image-answer", "golf ball")
    choose(page, "image-methods", "agcam")
    choose(page, "image-preset", "official")
    says(page, "#image-maps", "agcam, official")


def test_flags_let_visitors_open_any_model_and_pickled_weights(browser, pickled):
    with served("--any-model", "--pickled-weights") as (address, lines), visits(browser, address) as open_page:
        page = open_page()
        page.goto(address)
        page.wait_for_selector("#image-maps img")
        page.get_by_role("button", name="More choices").filter(visible=True).click()
        page.locator("#image-model input").fill(pickled)
        changed(page, lambda: page.keyboard.press("Enter"))
        assert "golf ball" not in page.inner_text("#image-answer")
        assert page.locator("#image-trouble [role=alert]").count() == 0
        page.locator("#image-model input").fill(f"{pickled}-that-is-nowhere")
        page.keyboard.press("Enter")
        says(page, "#image-trouble [role=alert]", "that-is-nowhere")
    assert "Traceback" not in "".join(lines)


def test_colours_parts_and_fills_are_chosen(visit):
    page = visit()
    changed(page, lambda: choose(page, "image-palette", "Safe for colour-blind eyes"))
    layer = "() => document.querySelector('#image-layer-view img')?.src"
    changed(page, lambda: choose(page, "image-layer-by", "attcat"), layer)
    heads = "() => document.querySelector('#image-heads-view img')?.src"
    changed(page, lambda: choose(page, "image-heads-by", "grad_eclip_heads"), heads)
    panel(page, "Remove")
    choose(page, "image-remove-by", "gae")
    left = "() => document.querySelector('#image-remove-view img')?.src"
    changed(page, lambda: choose(page, "image-fill", "black"), left)
    choose(page, "image-methods", "rollout")
    counts(page, "#image-maps img", 5)
    assert page.input_value("#image-remove-by input") == "gae"  # and is not set back


def test_a_script_is_shown_as_text(visit):
    page = visit()
    tab(page, "Text")
    page.fill("#text-input textarea", NASTY)
    changed(page, lambda: page.click("#text-go"), "() => document.querySelector('#text-maps .sentence')?.innerText")
    counts(page, "#text-maps .sentence", 3)
    assert "< script > alert ( 1 ) < / script >" in page.inner_text("#text-maps")
    panel(page, "Remove", "text")
    assert page.locator("#text-remove-view del").count() >= 1
    panel(page, "Why not?", "text")
    assert page.locator("[id^=text-] :is(script, img)").count() == 0


def test_a_script_in_a_notebook_is_shown_as_text(visit, house, room, text):
    from vitrail.apps.web import actions

    actions.take_text(house, room, NASTY)
    _, _, found = actions.known_maps(house, room, text)
    page = visit()
    page.set_content("".join(one._repr_html_() for one in found if isinstance(one, vitrail.Attribution)))
    assert "script" in page.inner_text("body")
    assert page.locator("script, img").count() == 0


def test_a_long_job_shows_progress_and_stops(visit):
    page = visit()
    assert page.locator("#image-stop").is_hidden()
    choose(page, "image-methods", "tis (takes longer)")
    page.keyboard.press("Escape")
    page.get_by_role("progressbar", name="computing tis").wait_for()
    assert "still computing" in page.inner_text("#image-maps")
    page.locator("#image-stop").focus()
    page.keyboard.press("Enter")
    says(page, "#image-trouble [role=alert]", "Stopped")
    says(page, "#image-maps", "stopped")
    page.locator("#image-stop").wait_for(state="hidden")
    assert page.locator("#image-maps img").count() == 4


def test_visitors_see_their_own(visit):
    words = ["dull", "brilliant", "endless"]
    pages = [visit() for _ in words]
    for page, word in zip(pages, words, strict=True):
        tab(page, "Text")
        page.fill("#text-input textarea", f"a {word} film")
    for page in pages:
        page.click("#text-go")
    for page, word in zip(pages, words, strict=True):
        says(page, "#text-maps", word)
        slide(page, "text-layer")
        page.wait_for_selector("#text-layer-view tr.marked:nth-child(2)")
        said = page.inner_text("#text-maps") + page.inner_text("#text-layer-view")
        assert [other in said for other in words] == [other == word for other in words]

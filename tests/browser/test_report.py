import dataclasses

import pytest

from autorecompute.measurement import Measurement, Outcome

DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}
SECTIONS = ["use", "buys", "why", "sure", "trials"]


def is_wider_than_its_window(page):
    return page.evaluate("document.documentElement.scrollWidth > innerWidth")


def column(page, heading):
    headings = [text.strip(" ↑↓") for text in page.locator("#trials thead th").all_inner_texts()]
    place = headings.index(heading) + 1
    return page.locator(f"#trials tbody td:nth-child({place})").all_inner_texts()


@pytest.mark.parametrize("settings", [DESKTOP, PHONE, {**DESKTOP, "color_scheme": "dark"}])
def test_it_loads_alone_and_without_a_complaint(visit, report, settings):
    page = visit(report, **settings)
    assert page.requested == [report.as_uri()]
    assert page.complaints == []
    assert [section.get_attribute("id") for section in page.locator("main > section").all()] == SECTIONS
    assert page.locator("svg.chart").count() == 2
    assert all(box["height"] > 100 for box in (chart.bounding_box() for chart in page.locator("svg.chart").all()))
    assert not is_wider_than_its_window(page)


@pytest.mark.parametrize("heading", ["peak", "samples/s", "#", "step"])
def test_a_click_on_a_heading_sorts(visit, report, recorded, heading):
    page = visit(report, **DESKTOP)
    values = {
        "peak": [t.measurement.peak_bytes for t in recorded.trials],
        "samples/s": [t.measurement.samples_per_second for t in recorded.trials],
        "#": [t.number for t in recorded.trials],
        "step": [t.measurement.median_step_seconds for t in recorded.trials],
    }[heading]
    numbers = [str(t.number) for t in recorded.trials]
    button = page.locator("#trials thead").get_by_role("button", name=heading, exact=True)
    for direction in ("ascending", "descending"):
        button.click()
        shown = [values[numbers.index(number)] for number in column(page, "#")]
        assert shown == sorted(shown, reverse=direction == "descending")
        assert page.locator(f"#trials th[aria-sort={direction}]").count() == 1
    assert sorted(column(page, "#"), key=int) == numbers


def test_what_was_not_measured_stays_last(visit, recorded):
    def lose(trials, _):
        trials[3] = dataclasses.replace(trials[3], measurement=Measurement(outcome=Outcome.OOM))
        return trials

    page = visit(recorded.copy("lost", lose), **DESKTOP)
    button = page.locator("#trials thead").get_by_role("button", name="peak", exact=True)
    for _ in range(2):
        button.click()
        assert column(page, "#")[-1] == "3"


def test_a_button_copies_the_line(visit, report):
    page = visit(report, **DESKTOP, permissions=["clipboard-read", "clipboard-write"])
    page.locator(".copy").first.click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.locator(".paste code").first.inner_text()
    assert page.complaints == []


def test_a_log_opens_from_its_row(visit, report):
    page = visit(report, **DESKTOP)
    page.locator("#trials tbody tr:nth-child(3) a").click()
    assert page.inner_text("body").strip() == "output of trial 2"


def test_without_javascript_only_sorting_is_missing(visit, report):
    page = visit(report, **DESKTOP, java_script_enabled=False)
    with_it = visit(report, **DESKTOP)
    assert page.locator("body").inner_text().split() == [
        word for word in with_it.locator("body").inner_text().split() if word != "Copy"
    ]
    assert page.locator("button:visible").count() == 0


def test_dark_is_dark_and_paper_is_white(visit, report):
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + Number(b), 0) / 3"
    axis = "getComputedStyle(document.querySelector('svg.chart text')).fill.match(/\\d+/g)[0] * 1"
    light, dark = (visit(report, **DESKTOP, color_scheme=scheme) for scheme in ("light", "dark"))
    assert light.evaluate(brightness) > 240 > light.evaluate(axis) + 100
    assert dark.evaluate(brightness) < 50 < dark.evaluate(axis) - 50
    dark.emulate_media(media="print")
    assert dark.evaluate(brightness) > 240 > dark.evaluate(axis) + 100


def test_it_can_be_printed(visit, report):
    page = visit(report, viewport={"width": 718, "height": 1000})
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".copy:visible").count() == 0
    assert page.locator("dl").is_visible()
    assert not is_wider_than_its_window(page)
    assert page.evaluate("document.querySelector('.trials').getBoundingClientRect().right <= innerWidth")


@pytest.mark.parametrize("settings", [DESKTOP, PHONE])
def test_hostile_words_do_nothing_and_fit(visit, hostile_report, settings):
    page = visit(hostile_report, **settings)
    assert page.title() != "owned"
    assert page.requested == [hostile_report.as_uri()]
    assert page.complaints == []
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert "<script>document.title='owned'</script>" in page.locator("#trials tbody").inner_text()
    assert not is_wider_than_its_window(page)


def test_five_hundred_trials_are_sorted_at_once(visit, recorded):
    def multiply(trials, _):
        return [dataclasses.replace(trials[n % len(trials)], number=n) for n in range(500)]

    large_report = recorded.copy("large", multiply)
    page = visit(large_report, **DESKTOP)
    assert page.locator("#trials tbody tr").count() == 500
    button = page.locator("#trials thead").get_by_role("button", name="peak", exact=True)
    button.click()
    button.click()
    peaks = [int(text.split()[0]) for text in column(page, "peak")]
    assert peaks == sorted(peaks, reverse=True)
    assert large_report.stat().st_size < 1_500_000

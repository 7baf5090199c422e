from autorecompute.measurement import Outcome
from browser.dashboard import DRAWN, PATIENCE_SECONDS, dashboard

HAS_TRIALS = "chart => document.querySelector(chart).data.some(({name, x}) => name.startsWith('Best') && x.length > 0)"


def test_the_chart_names_its_value_and_marks_what_does_not_fit(chromium, recorded):
    with dashboard(f"sqlite:///{recorded.copy('shown').parent}/study.db") as address:
        page = chromium.new_page()
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        page.goto(address)
        page.locator(DRAWN).wait_for()
        # It is drawn once without trials, before they are there.
        page.wait_for_function(HAS_TRIALS, arg=DRAWN)
        chart = page.locator(DRAWN).evaluate(
            "chart => ({axis: chart.layout.yaxis.title.text, drawn: chart.data.map(({name, x, y}) => ({name, x, y}))})"
        )
        page.close()
    assert chart["axis"] == "samples/s"
    apart = [drawn["x"] for drawn in chart["drawn"] if drawn["name"].startswith("Infeasible")]
    assert apart == [[t.number for t in recorded.trials if t.measurement.outcome is Outcome.OVER_LIMIT]]
    (best,) = (max(drawn["y"]) for drawn in chart["drawn"] if drawn["name"].startswith("Best"))
    assert best == max(t.measurement.samples_per_second for t in recorded.trials if t.fits)

"""What the Profile page is made of, without the page: lines, curves, memory bars, ratios, filters, pictures."""

import csv
import io
from dataclasses import replace

import pytest

from app.charts.curves import VIEWS, Curve, Line, curves, interval
from app.charts.memory import Limit, MemoryBar, memory, visible_limits
from app.charts.ratio import RatioLine, ratio
from app.components.saving import csv_of
from app.models.profile import compare as profile_compare
from app.models.profile import fits as profile_fits
from app.models.profile import row_details
from app.models.profile import rows as profile_rows
from app.models.profile import table as profile_table
from app.models.profile.compare import table as compared
from app.models.profile.curves import default_choice, describe_advice
from app.models.profile.fits import drawn_batches, fits
from app.models.profile.memory import bars_of, largest_batches, limits_of
from app.models.profile.memory import table as memory_table
from app.models.profile.ratios import common_points, middle
from app.models.profile.rows import Place, Series, place_of
from app.models.profile.table import FAILED, UNTRIED, Filter
from tests.support.app.profiles import BATCHES, KIND, measured, row, time_of
from torchsplit_core.curves import fit_model
from torchsplit_core.hardware import gpu_type
from torchsplit_core.profiling.interpolation import slice_samples
from torchsplit_core.tables import read_profile_csv
from torchsplit_core.values import MemoryParts, Profile

SLICE = Place(KIND, "3g.40gb")
WHOLE = Series("m", "whole", SLICE, 1)


def test_a_measurement_hides_the_estimate_of_its_point():
    entries = [("m", row(2, 5.0, basis="estimated")), ("m", row(2, 4.0)), ("m", row(1, 3.0))]
    assert [found.latency_ms for found in profile_rows.lines(entries)[WHOLE]] == pytest.approx([3.3, 4.4])


def test_places_with_measurements_come_first():
    labels = [place.label for place in profile_rows.places({"m": measured("m")})]
    assert labels == ["A100-80GB · 3g.40gb", "A100-80GB · 7g.80gb", "CPU", "A100-80GB · 1g.10gb"]
    one, other = Series("sample:bert", "whole", SLICE, 1), Series("sample:bert", "whole", SLICE, 2)
    assert profile_rows.labels([one])[one] == "bert · 3g.40gb"
    assert profile_rows.labels([one, other])[other] == "bert · 3g.40gb · 2 proc."
    small, large = "sample:bert", "sample:bert@large"
    assert profile_rows.short_names([small, large]) == {small: small, large: large}


def test_the_first_look_is_where_the_newest_profile_was_measured():
    other = Profile("o", "", rows=(row(1, 5.0, kind="CPU", size=None),))
    estimated = Profile("e", "", rows=(row(1, 5.0, kind="CPU", size=None, basis="estimated"),))
    assert default_choice({"o": other, "e": estimated, "m": measured("m")}) == (["o", "m"], ["CPU"])
    assert default_choice({"e": estimated}) == (["e"], [])


def test_curves_and_stored_estimates_rest_on_the_same_sizes(monkeypatch):
    off, seven, some = (
        tuple(row(batch, 5.0 * batch, size=size, basis=basis) for batch in BATCHES)
        for size, basis in ((None, "measured"), ("7g.80gb", "measured"), ("sm:20", "emulated"))
    )
    profile = Profile("m", "", rows=(*off, *seven, *some))
    given = []
    monkeypatch.setattr(profile_fits, "fit_model", lambda rows: given.extend(rows) or fit_model(rows))
    fits("model", profile, (1,))
    assert {sample.size for sample in given} == {108.0, 98.0, 20.0}
    assert set(given) == set(slice_samples(profile, gpu_type(KIND)))


def test_a_curve_goes_through_clean_points_and_its_band_holds_them():
    fit = next(found for found in fits("m", measured("m"), (1,)) if found.gpu_type == KIND)
    curve = fit.curves[WHOLE]
    by_batch = dict(zip(curve.batch_sizes, curve.rps, strict=True))
    for batch in BATCHES:
        assert by_batch[batch] == pytest.approx(1000 * batch / time_of(batch, 0.5), rel=0.1)
    assert all(
        low <= rate <= high for low, rate, high in zip(curve.low_rps, curve.rps, curve.high_rps, strict=True)
    )
    # The p95 that is drawn lies as far above the typical time as the measured p95 does.
    at = curve.batch_sizes.index(4)
    assert curve.latency_ms[at] * curve.rps[at] == pytest.approx(1.1 * 1000 * 4)


def test_measured_and_emulated_rows_and_other_process_counts_are_never_fitted_together():
    emulated = tuple(
        replace(found, basis="emulated") for found in measured("m").rows if place_of(found) == SLICE
    )
    profile = measured("m")
    found = fits("m", replace(profile, rows=(*profile.rows, *emulated)), (1,))
    assert sorted((fit.gpu_type, fit.basis, fit.rows) for fit in found) == [
        (KIND, "emulated", 5), (KIND, "measured", 10), ("CPU", "measured", 3),
    ]  # fmt: skip
    assert fits("m", measured("m"), (2,)) == ()


def test_a_point_far_from_the_others_is_told_with_what_they_say():
    found = [fit for fit in fits("m", measured("m", far_off=4), (1,)) if fit.gpu_type == KIND]
    far = [point for fit in found for point in fit.outliers]
    assert [(point.series, point.row.batch_size) for point in far] == [(WHOLE, 4)]
    assert far[0].low_rps <= far[0].expected_rps <= far[0].high_rps
    assert far[0].row.throughput_rps < far[0].low_rps


def test_one_measured_slice_says_how_uncertain_the_others_are_and_what_helps():
    profile = measured("m")
    alone = replace(profile, rows=tuple(found for found in profile.rows if place_of(found) == SLICE))
    fit = fits("m", alone, (1,))[0]
    point = fit.next_point
    assert point is not None and point.slices_measured == 1
    assert point.width_now > point.width_after > 1 and point.next_slice != "3g.40gb"
    assert "measured on one slice" in describe_advice(fit) and "would help most" in describe_advice(fit)
    both = next(found for found in fits("m", profile, (1,)) if found.gpu_type == KIND)
    assert both.next_point is not None and both.next_point.slices_measured == 2
    assert all(found.next_point is None for found in fits("m", profile, (1,)) if found.gpu_type == "CPU")


def test_a_curve_is_drawn_a_little_beyond_what_was_measured():
    batches = drawn_batches([1, 2, 4])
    assert batches[0] == 1 and batches[-1] == 8 and {1, 2, 4} <= set(batches)
    assert drawn_batches([7]) == tuple(sorted(set(drawn_batches([7]))))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dark", [False, True])
def test_measured_emulated_and_estimated_points_look_different(view, dark):
    rows = (row(1, 4.0), row(2, 5.0, basis="emulated"), row(4, 6.0, basis="estimated"))
    curve = Curve((1, 8), (250.0, 900.0), (240.0, 700.0), (260.0, 1100.0), (4.0, 9.0))
    figure = curves([Line("m", "#3f66cc", "here", rows, curve, frozenset({1}))], view, dark=dark)  # type: ignore[arg-type]
    points = next(trace for trace in figure.data if trace.customdata is not None and len(trace.x) == 3)
    assert list(points.marker.symbol) == ["circle", "diamond-open-dot", "circle-open"]
    assert points.marker.color[0] == "#3f66cc" != points.marker.color[2]
    ring = next(trace for trace in figure.data if trace.name == "far from the others")
    assert len(ring.x) == 1 and ring.x[0] == points.x[0] and ring.y[0] == points.y[0]
    bands = [trace for trace in figure.data if trace.fill == "toself"]
    assert len(bands) == (0 if view == VIEWS[0] else 1)


def test_lines_of_very_different_height_share_a_logarithmic_axis():
    slow, fast = Line("a", "#3f66cc", "here", (row(1, 100.0),)), Line("b", "#d9532f", "here", (row(1, 1.0),))
    assert curves([slow, fast], VIEWS[1], dark=False).layout.yaxis.type == "log"
    assert curves([slow], VIEWS[1], dark=False).layout.yaxis.type != "log"


def test_the_interval_of_a_latency_is_that_of_its_percentile_or_of_the_estimate():
    assert interval(row(1, 4.0), VIEWS[2]) is None  # too few runs bound this p95
    low, high = interval(
        replace(row(1, 4.0, basis="estimated", noise=0.5), percentiles_ms=None), VIEWS[2]
    ) or (0, 0)
    assert low == pytest.approx(4.4 / 1.5) and high == pytest.approx(4.4 * 1.5)
    assert interval(row(1, 4.0, noise=0.25), VIEWS[1]) == pytest.approx((200.0, 312.5))


def test_memory_is_in_its_parts_and_what_failed_is_no_bar():
    bars, failed = bars_of(measured("m"), SLICE)
    assert [bar.batch_size for bar in bars] == list(BATCHES) and failed == (32,)
    assert dict(bars[1].parts) == {"weights": 1.0, "activations": 0.5, "transient": 0.5, "context": 0.25}
    figure = memory(bars, limits_of(KIND), failed, dark=False)
    names = [trace.name for trace in figure.data]
    assert names == ["weights", "activations", "transient", "context", "out of memory"]
    assert [shape.y0 for shape in figure.layout.shapes] == [9.5]
    assert list(memory_table(bars)["peak GiB"]) == [bar.total for bar in bars]


def test_estimated_parts_are_hatched_unknown_ones_are_one_bar_and_no_memory_is_none():
    parts = MemoryParts(1.0, 1.0, 0.0, 0.0, "estimated")
    rows = (replace(row(1, 4.0), memory_parts_gib=parts), replace(row(2, 5.0), memory_parts_gib=None))
    bars, _ = bars_of(Profile("m", "", rows=rows), SLICE)
    assert bars[0].estimated and [name for name, _ in bars[1].parts] == ["peak"]
    figure = memory(bars, (), (), dark=True)
    assert list(figure.data[0].marker.pattern.shape) == ["/"]
    rows = (replace(row(1, 4.0), memory_gib=None, memory_parts_gib=None),)
    assert bars_of(Profile("m", "", rows=rows), SLICE) == ((), ())


def test_a_limit_that_would_flatten_the_bars_is_not_drawn():
    limits = (Limit("a", 5.0), Limit("b", 10.0), Limit("c", 10.0), Limit("d", 40.0))
    assert visible_limits(limits, 6.0) == (Limit("a", 5.0), Limit("b, c", 10.0))
    assert visible_limits(limits, 0.1) == ()
    assert visible_limits(limits, 80.0) == (Limit("a", 5.0), Limit("b, c", 10.0), Limit("d", 40.0))
    assert memory(
        [MemoryBar(1, (("peak", 0.01),), False)], limits, (), dark=False
    ).layout.yaxis.title.text.endswith("MiB")


def test_the_largest_batch_that_fits_a_slice_is_known_from_the_bars():
    bars, _ = bars_of(measured("m"), SLICE)
    fitting = largest_batches(bars, (Limit("small", 1.0), Limit("middle", 3.0), Limit("large", 40.0)))
    assert [batch for _, batch in fitting] == [None, 4, 16]


def test_a_ratio_within_noise_is_no_difference_and_one_beyond_it_is_faster_or_slower():
    found = common_points(measured("a", noise=0.2), measured("b", speed=1.1, noise=0.2))
    pairs = [pair for pair in found if pair.place == SLICE]
    assert {pair.verdict for pair in pairs} == {"within noise"}
    assert middle(pairs) == pytest.approx(1.1)
    assert all(pair.low < 1 < pair.high for pair in pairs if pair.low is not None and pair.high is not None)
    slow, fast = measured("a"), measured("b", speed=2.0)
    on_slice = [pair for pair in common_points(slow, fast) if pair.place == SLICE]
    assert {pair.verdict for pair in on_slice} == {"faster"}
    assert {pair.verdict for pair in common_points(fast, slow) if pair.place == SLICE} == {"slower"}
    assert [pair.batch_size for pair in on_slice] == list(BATCHES)


def test_two_places_of_one_profile_are_compared_by_batch_size():
    profile = measured("m")
    pairs = common_points(profile, profile, (SLICE, Place(KIND, "7g.80gb")))
    assert [pair.batch_size for pair in pairs] == list(BATCHES)
    assert {round(pair.ratio, 6) for pair in pairs} == {2.0}
    assert common_points(profile, profile, (SLICE, Place("A30-24GB", "1g.6gb"))) == ()


def test_without_intervals_nothing_is_said_of_noise():
    bare = Profile("m", "", rows=(replace(row(1, 4.0), low_rps=None, high_rps=None),))
    (pair,) = common_points(bare, bare)
    assert pair.verdict == "no interval" and pair.low is None
    assert middle(()) is None


def test_a_comparison_is_a_table_a_file_and_a_picture():
    pairs = common_points(measured("a"), measured("b", speed=2.0))
    assert len(compared(pairs)) == len(pairs)
    hostile = tuple(replace(pair, stage="=cmd()") for pair in pairs)
    rows = list(
        csv.DictReader(
            io.StringIO(csv_of(profile_compare.table((*hostile, replace(hostile[0], low=None, high=None)))))
        )
    )
    assert {found["stage"] for found in rows} == {"'=cmd()"} and rows[-1]["at least"] == ""
    line = RatioLine("here", "#3f66cc", (1, 2), (1.0, 2.0), (0.9, 1.5), (1.1, 2.5), (True, False))
    trace = ratio([line], "second ÷ first", dark=False).data[0]
    assert list(trace.marker.symbol) == ["circle-open", "circle"]
    assert list(trace.error_y.array) == pytest.approx([0.1, 0.5])


def test_a_filter_takes_what_all_of_its_parts_take():
    profile = measured("m")
    items = [("m", item) for item in (*profile.rows, *profile.failures)]

    def count(wanted):
        return sum(wanted.matches(name, item) for name, item in items)

    assert count(Filter()) == len(items) == 16
    assert count(Filter(bases=("estimated",))) == 2 and count(Filter(bases=(FAILED,))) == 1
    assert count(Filter(places=("CPU",))) == 3 and count(Filter(models=("other",))) == 0
    assert count(Filter(batches=(2, 4))) == 6
    assert count(Filter(text="OUT_OF_MEMORY cuda")) == 1 and count(Filter(text="7g.80gb measured")) == 5


def test_a_failure_has_words_and_no_figure_and_what_was_ruled_out_is_no_failure():
    profile = measured("m")
    table = profile_table.table([("m", item) for item in (*profile.rows, *profile.failures)])
    failed = table[table["basis"] == FAILED]
    assert list(failed["req/s"].isna()) == [True]
    assert list(failed["why"]) == ["out of memory: CUDA out of memory"]
    ruled_out = replace(profile.failures[0], reason="timeout", message="Not tried: it would take too long.")
    table = profile_table.table([("m", profile.failures[0]), ("m", ruled_out)])
    assert list(table["basis"]) == [FAILED, UNTRIED]


def test_the_filtered_rows_are_downloaded_as_they_are():
    profile = measured("sample:m")
    kept = [item for item in profile.rows if place_of(item) == SLICE]
    found = [("sample:m", item) for item in (*kept, *profile.failures)]
    text = profile_table.csv_of({"sample:m": profile, "sample:n": measured("sample:n")}, found)
    (back,) = read_profile_csv(text).profiles
    assert back.rows == tuple(kept) and back.failures == profile.failures


def test_the_details_of_a_row_say_percentiles_memory_and_device():
    profile = measured("m")
    on_cpu = next(item for item in profile.rows if item.device == "cpu")
    speed = dict(row_details.speed_facts(on_cpu))
    assert speed["timed runs"] == "40" and speed["basis"] == "measured"
    assert "(392 to 408)" in speed["p50"] and speed["p99"].endswith("(? to 99)")
    assert dict(row_details.memory_facts(on_cpu))["weights"].startswith("1")
    device = dict(row_details.device_facts(profile, "cpu"))
    assert device["device name"] == "A processor" and device["torch"] == "2.13.0"
    assert row_details.device_facts(profile, None) == [("device", "not measured here")]
    failed = dict(row_details.speed_facts(profile.failures[0]))
    assert failed == {"outcome": "out of memory", "why": "CUDA out of memory"}

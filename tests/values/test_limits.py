"""What is no number, name or file of a request is told as it is, with the limit that it passes."""

import errno
import math
import os

import pytest

from torchsplit_core.values import InputFault, system_reason
from torchsplit_core.values.limits import LARGEST_WHOLE, check_name, check_number, check_whole


@pytest.mark.parametrize(("check", "said"), [
    (lambda: check_number("x", "3"), "x: is '3', not a number. Give a number."),
    (lambda: check_number("x", True), "x: is True, not a number. Give a number."),
    (lambda: check_number("x", math.nan), "x: is nan, not a finite number. Give a number."),
    (lambda: check_number("x", -3), "x: is -3, below the least value 0. Give a number of 0 or more."),
    (lambda: check_number("x", 0, positive=True), "x: is 0, not above 0. Give a number above 0."),
    (lambda: check_number("x", 10**16), f"x: is {10**16}, above the greatest value 1e+15. Check its unit."),
    (lambda: check_number("x", -1e16, signed=True), "x: is -1e+16, below the least value -1e+15. Check its unit."),
    (lambda: check_number("x", 1e-12), "x: is 1e-12, below the least positive value 1e-09. Give a larger number"),
    (lambda: check_whole("x", 1.5), "x: is 1.5, not a whole number. Give a whole number."),
    (lambda: check_whole("x", 0, least=1), "x: is 0, below the least value 1. Give 1 or more."),
    (lambda: check_whole("x", 2**60), f"x: is {2**60}, above the greatest value {LARGEST_WHOLE}. Give {2**53} or"),
    (lambda: check_whole("x", 10**5000), "x: is a number of thousands of digits, above the greatest value"),
    (lambda: check_name("x", 3), "x: is 3, not text. Give a name."),
    (lambda: check_name("x", "a\nb"), r"x: is 'a\nb', which contains a control character"),
])  # fmt: skip
def test_a_value_is_told_with_the_limit_that_it_passes(check, said):
    with pytest.raises(InputFault) as caught:
        check()
    assert str(caught.value).startswith(said)


def test_the_system_s_words_begin_small():
    assert system_reason(FileNotFoundError(errno.ENOENT, "No such file or directory")) == "no such file"
    assert system_reason(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) == "no space left on device"
    assert system_reason(OSError("Broken")) == "broken"

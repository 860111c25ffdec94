"""The page of what is covered says what the importer's tables say, and no op of the standard is missing."""

import onnx
import pytest

from ingot.frontends.onnx.registry import registered
from tests.frontends.onnx.coverage import DOMAINS, PAGE, how, newest_schemas, page
from tests.frontends.onnx.exclusions import CASES, PASSING

needs_same_onnx = pytest.mark.skipif(not onnx.__version__.startswith("1.23."), reason="the page is about onnx 1.23")


@needs_same_onnx
def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "make it anew: python -m tests.frontends.onnx.coverage"


@needs_same_onnx
@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain or "ai.onnx")
def test_every_op_of_the_standard_is_covered(domain):
    missing = [name for name, schema in newest_schemas(domain).items() if not how(domain, name, schema)]
    assert not missing


def test_the_readme_has_the_same_numbers():
    text = " ".join((PAGE.parent.parent / "README.md").read_text(encoding="utf-8").split())
    assert f"{PASSING} of the {CASES} cases of the official suite pass" in text


def test_converters_begin_where_the_standard_changes():
    """A converter that starts at a version which the op does not have would never be chosen as meant."""
    history = {(s.domain, s.name, s.since_version) for s in onnx.defs.get_all_schemas_with_history()}
    known = {(domain, name) for domain, name, _ in history}
    wrong = [
        (domain, name, since)
        for (domain, name), versions in registered().items()
        if (domain, name) in known
        for since in versions
        if since != 1 and (domain, name, since) not in history
    ]
    assert not wrong

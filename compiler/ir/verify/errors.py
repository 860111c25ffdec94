"""What a verifier raises."""

from __future__ import annotations


class VerifyError(Exception):
    """The IR breaks a rule. Always a mistake of the compiler, never of its user; the message says where it is
    and which rule."""

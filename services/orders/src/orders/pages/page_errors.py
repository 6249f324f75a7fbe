"""What can go wrong in the pages themselves; each becomes a page of its own."""

from __future__ import annotations


class PageError(Exception):
    """`name` is that of the sentence in the catalogs, under `problem.`; `status` is the HTTP status."""

    name = "internal-error"
    status = 500


class NotSignedInError(PageError):
    """The page is for people who are signed in; they are led to where one signs in."""

    name = "unauthenticated"
    status = 401


class ForbiddenError(PageError):
    """The visitor is known, and may not do this."""

    name = "forbidden"
    status = 403

    def __init__(self, scope: str) -> None:
        super().__init__(f"this needs the scope {scope!r}")


class OtherSiteError(PageError):
    """A form was sent from a page of another site (cross-site request forgery)."""

    name = "other-site"
    status = 403

    def __init__(self) -> None:
        super().__init__("the request does not say that it comes from a page of this shop")


class BadFormError(PageError):
    """A field of a form cannot be used."""

    name = "invalid-request"
    status = 422


class BadAmountError(BadFormError):
    """An amount of money is not one."""

    name = "not-an-amount"


class UnknownMethodError(BadFormError):
    """A way to pay that there is not."""

    name = "no-such-method"

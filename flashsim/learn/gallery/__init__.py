"""The gallery: lessons, each a page that plays a recorded run, with a text on what to look for; and
an index of them.

Every number that a lesson names, and every step that it points at, comes from its trace. All runs
on one machine make the same bytes.
"""

from flashsim.learn.gallery.files import TITLE, files
from flashsim.learn.gallery.lessons import pages

__all__ = ["TITLE", "files", "pages"]

"""The gallery: lessons, each a page that plays a recorded run, with a text on what to look for; and
an index of them.

Every number that a lesson names, and every step that it points at, is looked up in its trace. The
same bytes come of every run on one machine.
"""

from flashsim.learn.gallery.files import TITLE, files
from flashsim.learn.gallery.lessons import pages

__all__ = ["TITLE", "files", "pages"]

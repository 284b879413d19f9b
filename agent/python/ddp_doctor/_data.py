"""The end of the program's input."""

import sys

from . import _box, _sites


def patch(module, late):
    iterator = module._BaseDataLoaderIter
    original = iterator.__next__

    def __next__(self):
        try:
            return original(self)
        except StopIteration:
            if _box.is_open:
                try:
                    _box.lib.input_ended(_sites.site_of(sys._getframe(1)))
                except Exception:
                    pass
            raise

    __next__.__doc__ = original.__doc__
    iterator.__next__ = __next__

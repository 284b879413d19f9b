"""Groups of calls from C++ before PyTorch 2.4, on memory that looks like PyTorch's."""

import ctypes
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ddp_doctor._c10d import _groups, _script_objects  # noqa: E402

# Like a Python object of C++, an array has the address of its memory behind the head of a Python object.
Words = ctypes.c_uint64 * 16
VIRTUAL_FUNCTIONS = 0x1000


class Group:
    def __init__(self, pg):
        self.reference = lambda: pg


class ScriptObjects(unittest.TestCase):
    def setUp(self):
        self.kept = []
        self.pg = self.words(VIRTUAL_FUNCTIONS)
        _groups.by_id[id(self.pg)] = Group(self.pg)
        self.addCleanup(_groups.by_id.clear)

    def words(self, *values):
        self.kept.append(Words(*values))
        return self.kept[-1]

    def script_object(self, pg, slots_at=80):
        slots = self.words(ctypes.addressof(pg))
        values = [0] * (slots_at // 8) + [ctypes.addressof(slots)]
        return self.words(ctypes.addressof(self.words(*values)))

    def test_a_known_group_is_found_in_both_layouts(self):
        for slots_at in (80, 88):
            self.assertIs(_script_objects.group_of(self.script_object(self.pg, slots_at)), self.pg)

    def test_another_group_is_unknown(self):
        self.assertIsNone(_script_objects.group_of(self.script_object(self.words(VIRTUAL_FUNCTIONS))))

    def test_an_object_of_another_class_is_an_error(self):
        with self.assertRaisesRegex(LookupError, "layout"):
            _script_objects.group_of(self.script_object(self.words(VIRTUAL_FUNCTIONS + 8)))

    def test_a_wrong_address_is_an_error(self):
        for address in (0, 8, 1 << 63, (1 << 64) - 1):
            with self.assertRaises(LookupError):
                _script_objects.group_of(self.words(ctypes.addressof(self.words(*[address] * 16))))


if __name__ == "__main__":
    unittest.main()

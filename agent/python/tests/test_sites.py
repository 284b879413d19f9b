"""Which code belongs to the user, by the path of its file."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ddp_doctor import _sites  # noqa: E402

CACHE = "/scratch/compiled"


class Sites(unittest.TestCase):
    def setUp(self):
        self.addCleanup(setattr, _sites, "_torch", _sites._torch)
        _sites._torch = "/venv/site-packages/torch/"
        self.addCleanup(os.environ.pop, "TORCHINDUCTOR_CACHE_DIR", None)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = CACHE

    def kinds(self, *files):
        return [_sites._kind(file) for file in files]

    def test_generated_code_is_internal(self):
        files = (
            "<eval_with_key>.7",
            "/tmp/torchinductor_me/ab/cabxyz.py",
            CACHE + "/qr/cqr2.py",
            "/venv/site-packages/functorch/dim/op.py",
            "/venv/site-packages/torch/nn/modules/module.py",
        )
        self.assertEqual(self.kinds(*files), [_sites.INTERNAL] * len(files))

    def test_user_files_with_names_of_pytorch_are_not_internal(self):
        files = (
            "/home/me/functorch/train.py",
            "/home/me/torchinductor_speed/train.py",
            "/home/me/torchinductor_speed/ra/main.py",
            CACHE + "/train.py",
        )
        self.assertEqual(self.kinds(*files), [_sites.USER] * len(files))


if __name__ == "__main__":
    unittest.main()

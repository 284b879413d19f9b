"""What the files of a wheel need of a system, and what its name promises."""

import shutil
import subprocess
import zipfile

from support import ARCHITECTURES, ROOT, TestCase, is_release, run, wheel

# glibc has the function since version 2.34.
NEW_FUNCTION = "int close_range(unsigned, unsigned, int); int main(void) { return close_range(3, 4, 0); }\n"


class Symbols(TestCase):
    def setUp(self):
        venv = run([ROOT / "scripts/wheel-tools"]).stdout.strip().splitlines()[-1]
        self.python = venv + "/bin/python"

    def check(self, file):
        return run([self.python, ROOT / "scripts/check-wheel", file])

    def test_wheels_need_what_their_names_promise(self):
        for arch in ARCHITECTURES if is_release() else ARCHITECTURES[:1]:
            with self.subTest(arch):
                self.succeeds(self.check(wheel(arch)))

    def test_wrong_tag_is_rejected(self):
        name, _, _ = wheel().stem.rpartition("-")
        renamed = self.folder() / (name + "-manylinux_2_5_x86_64.whl")
        shutil.copy(wheel(), renamed)
        done = self.check(renamed)
        self.assertIn("its tag is manylinux_2_5_x86_64, and auditwheel finds manylinux_", done.stdout)
        self.assertEqual(done.returncode, 1)

    def test_new_function_of_the_c_library_is_rejected(self):
        folder = self.folder()
        (folder / "new.c").write_text(NEW_FUNCTION)
        compiler = [self.python, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.34"]
        subprocess.run([*compiler, folder / "new.c", "-o", folder / "new"], check=True)
        changed = folder / wheel().name
        shutil.copy(wheel(), changed)
        with zipfile.ZipFile(changed, "a") as archive:
            archive.write(folder / "new", "ddp_doctor/bin/new")
        done = self.check(changed)
        self.assertIn("x86_64-linux-gnu.2.17 has no close_range, which ddp_doctor/bin/new needs", done.stdout)
        self.assertEqual(done.returncode, 1)

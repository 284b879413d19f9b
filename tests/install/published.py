"""What is published: files, sizes, checksums and their signature, licenses, bills of materials, debug symbols."""

import json
import pathlib
import subprocess
import tarfile
import zipfile

from support import ARCHITECTURES, ROOT, VERSION, TestCase, run, wheel

DIST = ROOT / "dist"
MAX_BYTES = 12 * 1024 * 1024
LIBRARIES = ("libddp_doctor.so", "libddp_doctor_python.so", "libddp_doctor_nccl.so", "libddp_doctor_nccl_soname.so")


class Published(TestCase):
    def test_files_are_complete_and_small(self):
        names = ["SHA256SUMS"]
        for arch in ARCHITECTURES:
            names.append("ddp_doctor-%s-py3-none-manylinux_2_17_%s.whl" % (VERSION, arch))
            for target in ("unknown-linux-gnu", "unknown-linux-musl"):
                base = "ddp-doctor-%s-%s-%s" % (VERSION, arch, target)
                names += [base + ".cdx.json", base + "-symbols.tar.gz"]
            names.append("ddp-doctor-%s-%s-unknown-linux-musl.tar.gz" % (VERSION, arch))
        found = {path.name for path in DIST.iterdir() if VERSION in path.name or path.name == "SHA256SUMS"}
        self.assertEqual(found, set(names))
        for arch in ARCHITECTURES:
            self.assertLessEqual(wheel(arch).stat().st_size, MAX_BYTES)

    def test_checksums_and_their_signature(self):
        self.succeeds(run(["sha256sum", "--check", "SHA256SUMS"], cwd=DIST))
        listed = {line.split()[1].lstrip("*") for line in (DIST / "SHA256SUMS").read_text().splitlines()}
        self.assertEqual(listed, {path.name for path in DIST.iterdir() if VERSION in path.name})
        # The procedure of RELEASING.md, with a key for this test alone.
        keys = self.folder()
        gpg = ["gpg", "--homedir", keys, "--batch", "--pinentry-mode", "loopback", "--passphrase", ""]
        sums, signature = keys / "SHA256SUMS", keys / "SHA256SUMS.asc"
        sums.write_bytes((DIST / "SHA256SUMS").read_bytes())
        self.succeeds(run([*gpg, "--quick-generate-key", "release@example.org", "default", "sign"]))
        self.succeeds(run([*gpg, "--armor", "--detach-sign", sums]))
        self.assertEqual(run([*gpg, "--verify", signature, sums]).returncode, 0)
        sums.write_bytes(sums.read_bytes() + b"x")
        self.assertNotEqual(run([*gpg, "--verify", signature, sums]).returncode, 0)
        run(["gpgconf", "--homedir", keys, "--kill", "all"])

    def test_licenses_and_bill_of_materials_name_the_same_crates(self):
        for arch in ARCHITECTURES:
            with self.subTest(arch):
                bill = json.loads((DIST / ("ddp-doctor-%s-%s-unknown-linux-gnu.cdx.json" % (VERSION, arch))).read_text())
                self.assertEqual((bill["bomFormat"], bill["specVersion"]), ("CycloneDX", "1.5"))
                self.assertEqual(bill["metadata"]["component"]["version"], VERSION)
                crates = {(it["name"], it["version"], it["purl"]) for it in bill["components"]}
                self.assertGreater(len(crates), 100)
                with zipfile.ZipFile(wheel(arch)) as archive:
                    notices = archive.read("ddp_doctor/THIRD-PARTY.txt").decode()
                for name, version, purl in crates:
                    self.assertIn("\n%s %s: " % (name, version), notices)
                    self.assertEqual(purl, "pkg:cargo/%s@%s" % (name, version))

    def test_symbols_belong_to_the_published_files(self):
        for arch in ARCHITECTURES:
            with self.subTest(arch):
                folder = self.folder()
                symbols = DIST / ("ddp-doctor-%s-%s-unknown-linux-gnu-symbols.tar.gz" % (VERSION, arch))
                with tarfile.open(symbols) as archive:
                    names = {pathlib.Path(name).name for name in archive.getnames() if name.endswith(".debug")}
                self.assertEqual(names, {name + ".debug" for name in (*LIBRARIES, "ddp-doctor")})
                with zipfile.ZipFile(wheel(arch)) as archive:
                    for name in ("bin/ddp-doctor", *LIBRARIES):
                        file = pathlib.Path(archive.extract("ddp_doctor/" + name, folder))
                        sections = run(["readelf", "--sections", "--wide", file]).stdout
                        self.assertNotIn(".debug_info", sections)
                        link = run(["readelf", "--string-dump=.gnu_debuglink", file]).stdout
                        self.assertIn(file.name + ".debug", link)

    def test_wheels_name_what_they_need(self):
        for arch in ARCHITECTURES:
            with zipfile.ZipFile(wheel(arch)) as archive:
                names = archive.namelist()
                tags = archive.read("ddp_doctor-%s.dist-info/WHEEL" % VERSION).decode()
            self.assertIn("Tag: py3-none-manylinux_2_17_%s\n" % arch, tags)
            for name in ("py.typed", "__init__.pyi", "THIRD-PARTY.txt"):
                self.assertIn("ddp_doctor/" + name, names)
            self.assertTrue(any(name.endswith("man1/ddp-doctor-attach.1") for name in names))

#!/usr/bin/env python3
"""scripts/check-report finds what is planted in a page, and only that. Checked against: pages with one fault each."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "check-report"
SKIPPED = 77
CHART = ('<svg class="chart" aria-label="chart" viewBox="0 0 400 100" width="380"><text x="10" y="20" font-size="12">one</text>'
         '<text x="{x}" y="{y}" font-size="{size}">two</text></svg>')
SOUND = CHART.format(x=100, y=20, size=12)


class CheckReportTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def check(self, body):
        page = self.folder / "page.html"
        page.write_text('<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"/><meta name="viewport" '
                        f'content="width=device-width"/><title>t</title></head><body>{body}</body></html>', encoding="utf-8")
        done = subprocess.run([sys.executable, SCRIPT, page], capture_output=True, text=True, timeout=120)
        if done.returncode == SKIPPED:
            self.skipTest("no Chromium")
        return done

    def test_a_sound_page_passes(self):
        done = self.check(SOUND)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual({path.name for path in self.folder.iterdir()},
                         {"page.html", "page.light.png", "page.dark.png", "page.phone.png", "page.pdf"})

    def test_every_fault_is_found(self):
        faults = (("asks the network for http://127.0.0.1:9/x.png", '<img src="http://127.0.0.1:9/x.png" alt="x"/>'),
                  ("asks the network for file:", '<img src="x.png" alt="x"/>'),
                  ("console: error", "<script>console.error('no')</script>"), ("exception", "<script>null.x</script>"),
                  ("1 scripts", "<script>1</script>"), ("the page is ", '<div style="width: 3000px">wide</div>'),
                  ("'one' and 'two' overlap", CHART.format(x=12, y=22, size=12)),
                  ("'two' leaves the chart", CHART.format(x=395, y=20, size=12)),
                  ("text below 9 px", CHART.format(x=100, y=20, size=12).replace('font-size="12"', 'font-size="6"')),
                  ("a chart without a name", SOUND.replace(' aria-label="chart"', "")),
                  ("contrast 1.", '<p style="color: #ddd; background: #fff">pale</p>'),
                  ("of the mark", '<svg class="key" width="24" height="12"><rect class="part" width="9" height="9" fill="#eee"/></svg>'))
        for words, body in faults:
            with self.subTest(words):
                done = self.check(SOUND + body)
                self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                self.assertIn(words, done.stdout)

    def test_usage(self):
        for arguments in ((), ("a", "b", "c"), (str(self.folder / "none.html"),)):
            done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2)
        self.assertEqual(subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, timeout=60).returncode, 0)


if __name__ == "__main__":
    unittest.main()

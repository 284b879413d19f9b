# /// truth
# nproc = 2
# seconds = 25
# [scenario.computes.healthy]
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# may_suspect = true
# [scenario.service.healthy]
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# may_suspect = true
# [scenario.child.healthy]
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# may_suspect = true
# [scenario.first.healthy]
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# may_suspect = true
# ///
"""Rank 0 is late by far, for good reasons: it may be suspected, but the job is not ended.

Arguments: why it is late, and the variant.
computes: it generates texts. service: a judge answers late. child: it waits for a child process that computes.
first: it prepares data while the other rank waits under the opposite condition.
"""

import contextlib
import http.client
import http.server
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

KIND = sys.argv[1]
SECONDS = 15
SPIN = "import time\nend = time.monotonic() + 15\nwhile time.monotonic() < end: pass"


def generate():
    end, text = time.monotonic() + SECONDS, 1
    while time.monotonic() < end:
        text = text * 31 % 65521
    return text


class Judge(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(SECONDS)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def ask_judge(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/score")
    return connection.getresponse().status


@contextlib.contextmanager
def main_process_first():
    if dist.get_rank() != 0:
        dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.barrier()


def work():
    if KIND == "service":
        server = http.server.HTTPServer(("127.0.0.1", 0), Judge)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ask_judge(server.server_address[1])
    elif KIND == "child":
        subprocess.run([sys.executable, "-c", SPIN], check=True)
    else:
        generate()


def main():
    dist.init_process_group("gloo")
    loss = torch.ones(8)
    for step in range(6):
        if KIND == "first" and step == 0:
            with main_process_first():
                if dist.get_rank() == 0:
                    work()
        elif dist.get_rank() == 0 and step == 4 and KIND != "first":
            work()
        dist.all_reduce(loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

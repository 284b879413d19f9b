# /// truth
# nproc = 3
# alone = true
# [scenario.queue.faulty]
# run_options = ["--stall-after", "6"]
# code = "DD204"
# verdict = "hang"
# confidence = "supported"
# says = "waits for a lock or for another thread"
# hang = true
# ranks = { root = [0], victims = [1, 2] }
# [scenario.queue.healthy]
# seconds = 25
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# [scenario.socket.healthy]
# seconds = 25
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# [scenario.pipe.healthy]
# seconds = 25
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# [scenario.polls.healthy]
# seconds = 25
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# [scenario.message.healthy]
# seconds = 25
# run_options = ["--stall-after", "4"]
# kill_after = "1"
# ///
"""An engine: rank 0 takes requests and broadcasts them, the others wait for the broadcast. Between requests all are idle.

Arguments: how rank 0 receives requests, and the variant.
queue: a thread of rank 0 reads them from a socket and fills a queue. Faulty: the thread has ended, so nothing fills it.
socket: rank 0 reads them from a socket. pipe: from a pipe of a client process. polls: from a file that it looks for.
message: as socket, but rank 0 sends each request to the other ranks one by one.
"""

import multiprocessing
import os
import queue
import socket
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

KIND, VARIANT = sys.argv[1:3]
TIMES = [0.2, 0.2, 20, 0.2] if VARIANT == "healthy" else [0.2, 0.2, 0.2]


def client(send):
    """Sends a request after each pause, and a last one that stops the engine."""
    for pause in TIMES:
        time.sleep(pause)
        send(b"1")
    send(b"0")


def from_socket():
    server = socket.create_server(("127.0.0.1", 0))
    out = socket.create_connection(server.getsockname())
    connection, _ = server.accept()
    child = multiprocessing.Process(target=client, args=(out.send,), daemon=True)
    child.start()
    return lambda: connection.recv(1)


def from_queue():
    receive, requests = from_socket(), queue.Queue()

    def read():
        for _ in range(len(TIMES) if VARIANT == "faulty" else len(TIMES) + 1):
            requests.put(receive())

    threading.Thread(target=read, daemon=True).start()
    return lambda: requests.get()  # HERE rank 0


def from_pipe():
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.Process(target=client, args=(theirs.send,), daemon=True).start()
    return ours.recv


def from_file():
    inbox = tempfile.mkdtemp()
    sent = iter(range(100))

    def send(request):
        with open(os.path.join(inbox, "new"), "wb") as file:
            file.write(request)
        os.rename(os.path.join(inbox, "new"), os.path.join(inbox, str(next(sent))))

    multiprocessing.Process(target=client, args=(send,), daemon=True).start()
    received = iter(range(100))

    def receive():
        name = os.path.join(inbox, str(next(received)))
        while not os.path.exists(name):
            time.sleep(0.05)
        with open(name, "rb") as file:
            return file.read()

    return receive


def pass_on(request):
    """Gives all ranks the request of rank 0."""
    if KIND != "message":
        dist.broadcast(request, src=0)  # HERE rank 1 2
    elif dist.get_rank() == 0:
        for rank in range(1, dist.get_world_size()):
            dist.send(request, dst=rank)
    else:
        dist.recv(request, src=0)


def main():
    dist.init_process_group("gloo")
    sources = {"queue": from_queue, "pipe": from_pipe, "polls": from_file}
    receive = sources.get(KIND, from_socket)() if dist.get_rank() == 0 else None
    weight, request = torch.ones(64, 64), torch.ones(1)
    while True:
        if receive:
            request[0] = int(receive())
        pass_on(request)
        if not request.item():
            break
        out = (weight @ weight).mean()
        dist.all_reduce(out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

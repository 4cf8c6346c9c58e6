"""A process between a store and those who use it, which has outages: python store_proxy.py PORT_OF_THE_STORE

It prints its own port, and takes one mode a line: "pass"; "refuse" (nothing listens, what is open is closed); "stall" (connections are
taken and nothing moves); "cut BYTES" (each connection ends after so many bytes in one direction).
"""

import asyncio
import sys


class Proxy:
    def __init__(self, store_port):
        self.store_port, self.port, self.server = store_port, 0, None
        self.mode, self.most = "pass", None
        self.moves = asyncio.Event()
        self.moves.set()
        self.open = set()

    async def listen(self):
        self.server = await asyncio.start_server(self.connected, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def set_mode(self, words):
        self.mode, self.most = words[0], int(words[1]) if len(words) > 1 else None
        (self.moves.clear if self.mode == "stall" else self.moves.set)()
        if self.mode == "refuse" and self.server:
            self.server.close()
            self.server = None
        elif self.mode != "refuse" and not self.server:
            await self.listen()
        if self.mode in ("refuse", "cut"):
            for writer in list(self.open):
                writer.transport.abort()
        print(self.mode, flush=True)

    async def connected(self, reader, writer):
        await self.moves.wait()
        store_reader, store_writer = await asyncio.open_connection("127.0.0.1", self.store_port)
        both = {writer, store_writer}
        self.open |= both
        directions = [asyncio.create_task(self.copy(*each)) for each in ((reader, store_writer), (store_reader, writer))]
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for each in both:
            each.transport.abort()
        self.open -= both

    async def copy(self, reader, writer):
        passed = 0
        try:
            while data := await reader.read(1 << 16):
                await self.moves.wait()
                if self.most is not None and passed + len(data) > self.most:
                    writer.write(data[:max(0, self.most - passed)])
                    await writer.drain()
                    return
                writer.write(data)
                passed += len(data)
                await writer.drain()
        except ConnectionError:
            pass


async def serve(store_port):
    proxy = Proxy(store_port)
    await proxy.listen()
    print(proxy.port, flush=True)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        await proxy.set_mode(line.decode().split())


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))

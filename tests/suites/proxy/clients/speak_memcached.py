"""An ordinary program that uses pymemcache, unmodified. Arguments: address, port."""

import sys

from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient

address = (sys.argv[1], int(sys.argv[2]))


def same(found, expected):
    if found != expected:
        raise AssertionError(f"{found!r} is not {expected!r}")


def exercise(client):
    client.flush_all()
    same(client.set("a", "1", noreply=False), True)
    same(client.get("a"), b"1")
    same(client.get("nothing"), None)
    same(client.set_many({"b": "2", "c": "3"}), [])
    same(client.get_many(["a", "b", "nothing", "c"]), {"a": b"1", "b": b"2", "c": b"3"})
    same(client.add("a", "x", noreply=False), False)
    same(client.replace("a", "5", noreply=False), True)
    same(client.append("a", "0", noreply=False), True)
    same(client.prepend("a", "1", noreply=False), True)
    same(client.get("a"), b"150")
    same(client.incr("a", 5), 155)
    same(client.decr("a", 5), 150)
    same(client.incr("nothing", 1), None)

    found, unique = client.gets("a")
    same(found, b"150")
    same(client.cas("a", "mine", unique, noreply=False), True)
    same(client.cas("a", "late", unique, noreply=False), False)
    same(client.cas("nothing", "x", unique, noreply=False), None)
    same(client.gets_many(["a", "b"]).keys(), {"a", "b"})

    same(client.touch("a", 100, noreply=False), True)
    same(client.touch("nothing", 100, noreply=False), False)
    same(client.delete("a", noreply=False), True)
    same(client.delete("a", noreply=False), False)

    # What wants no answer gets none, and does what it should.
    for i in range(1000):
        client.set(f"n:{i}", str(i), noreply=True)
    same(client.get_many([f"n:{i}" for i in range(1000)]), {f"n:{i}": str(i).encode() for i in range(1000)})

    value = bytes(range(256)) * 3000
    same(client.set("large", value, noreply=False), True)
    same(client.get("large"), value)


exercise(Client(address, timeout=20, connect_timeout=20))
exercise(PooledClient(address, timeout=20, connect_timeout=20, max_pool_size=4))
exercise(HashClient([address], timeout=20, connect_timeout=20))

client = Client(address, timeout=20)
same(client.version().startswith(b"1."), True)
same(b"curr_items" in client.stats(), True)
print("done")

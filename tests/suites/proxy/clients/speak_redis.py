"""An ordinary program that uses redis-py, unmodified. Arguments: address, port."""

import sys
import threading

import redis

address, port = sys.argv[1], int(sys.argv[2])
client = redis.Redis(address, port, socket_timeout=20)


def same(found, expected):
    if found != expected:
        raise AssertionError(f"{found!r} is not {expected!r}")


same(client.ping(), True)
same(client.set("a", "1"), True)
same(client.get("a"), b"1")
same(client.get("nothing"), None)
same(client.mset({"b": "2", "c": "3"}), True)
same(client.mget("a", "b", "nothing", "c"), [b"1", b"2", None, b"3"])
same(client.incr("a", 41), 42)
same(client.set("a", "x", nx=True), None)
same(client.expire("c", 100), True)
same(0 < client.ttl("c") <= 100, True)
same(client.delete("b", "nothing"), 1)

value = bytes(range(256)) * 4096
same(client.set("large", value), True)
same(client.get("large"), value)
same(client.getrange("large", 255, 257), b"\xff\x00\x01")

same(client.hset("h", mapping={"f": "1", "g": "2"}), 2)
same(client.hgetall("h"), {b"f": b"1", b"g": b"2"})
same(client.rpush("l", *range(10)), 10)
same(client.lrange("l", 2, 4), [b"2", b"3", b"4"])
same(client.zadd("z", {"one": 1, "two": 2}), 2)
same(client.zrange("z", 0, -1, withscores=True), [(b"one", 1.0), (b"two", 2.0)])
same(client.sadd("s", "m", "n"), 2)
same(client.smembers("s"), {b"m", b"n"})
same(client.eval("return {KEYS[1], ARGV[1]}", 1, "k", "v"), [b"k", b"v"])

# Pipelines: without a transaction, with one, and with one that another client's write breaks.
plain = client.pipeline(transaction=False)
for i in range(1000):
    plain.set(f"p:{i}", i)
    plain.get(f"p:{i}")
same(plain.execute(), [answer for i in range(1000) for answer in (True, str(i).encode())])
same(client.pipeline().incr("t").incr("t").get("t").execute(), [1, 2, b"2"])
with client.pipeline() as watching:
    watching.watch("t")
    client.set("t", "changed")
    watching.multi()
    watching.set("t", "lost")
    try:
        watching.execute()
        raise AssertionError("a transaction overwrote what it watched")
    except redis.WatchError:
        pass
same(client.get("t"), b"changed")
same(client.transaction(lambda pipe: pipe.multi() or pipe.set("t", "kept"), "t"), [True])

same({key for key in client.scan_iter("p:*", count=100)}, {f"p:{i}".encode() for i in range(1000)})
same(sorted(client.sscan_iter("s")), [b"m", b"n"])

# A subscription, and who waits for a list.
subscription = client.pubsub()
subscription.subscribe("news")
same(subscription.get_message(timeout=20)["type"], "subscribe")
same(client.publish("news", "hello"), 1)
same(subscription.get_message(timeout=20)["data"], b"hello")
subscription.unsubscribe("news")
same(subscription.get_message(timeout=20)["type"], "unsubscribe")
subscription.close()

popped = []
waiter = threading.Thread(target=lambda: popped.append(client.blpop("queue", timeout=20)))
waiter.start()
same(client.rpush("queue", "job"), 1)
waiter.join()
same(popped, [(b"queue", b"job")])

# Another database of the same store, by a connection of its own.
other = redis.Redis(address, port, db=3, socket_timeout=20)
same(other.get("a"), None)
same(other.set("a", "elsewhere"), True)
same((client.get("a"), other.get("a")), (b"42", b"elsewhere"))

try:
    client.lpush("a", "wrong")
    raise AssertionError("a string is no list")
except redis.ResponseError as error:
    same(str(error).startswith("WRONGTYPE"), True)
same(client.flushall(), True)
same(client.dbsize(), 0)
print("done")

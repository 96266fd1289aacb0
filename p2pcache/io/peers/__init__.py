"""The peer data plane: chunks from node to node, payload never touched by the event loop.

`net.PeerNet` is the facade. The loop's thread makes every decision (`requester`, `serving`);
pump threads receive, hash and write (`pump`, `reception`), upload threads send (`uploads`).
"""

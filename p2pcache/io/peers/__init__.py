"""The peer data plane: chunks from node to node; payload never passes through the event loop.

`net.PeerNet` is the facade. The loop's thread makes every decision (`request`, `serve.server_session`).
Receiving threads read, writing threads hash and write (`receive`, `transport.incoming_chunk`), and
upload threads send (`serve.uploads`).
"""

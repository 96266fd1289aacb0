"""Images of models, for runtimes that mount no artifacts.

A layer is named by the SHA-256 of an archive, so all bytes of a model must have come before its image has a name. Each
image is made once, and remembered while the agent runs.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing

from p2pcache.agent.doors.open_model import ModelDoor, OpenModel, Part
from p2pcache.core.format.manifest import File
from p2pcache.core.format.oci.image_layer import Image, Layer, archive_of, layers_of, make_image
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.tasks import Shared

AT_ONCE = 2  # models that are read for an image: each keeps a core busy
KEPT = 256  # images that are remembered; each is some KB for 100 files


class Images:
    """Makes and remembers images."""

    def __init__(self, models: ModelDoor) -> None:
        self._models = models
        self._made: OrderedDict[str, Image] = OrderedDict()  # by model, latest last
        self._making = Shared[Image]()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def made(self, model: OpenModel) -> Image:
        """The image of a model; waits until all of its bytes have come and are hashed.

        Raises:
            P2PCacheError: the model can't be fetched.
        """
        digest = model.layout.digest
        if digest not in self._made:
            await self._making.share(digest, lambda: self._make(model.ref, digest))
        self._made.move_to_end(digest)
        return self._made[digest]

    async def known(self, ref: Ref) -> list[tuple[Ref, Image]]:
        """The images of a name that were made here, with refs that open their models."""
        known = dict.fromkeys(digest for _, digest in await self._models.known(ref))
        return [
            (ref._replace(digest=digest), self._made[digest]) for digest in known if digest in self._made
        ]  # fmt: skip

    async def parts(self, model: OpenModel, layer: Layer) -> list[Part]:
        """What a layer consists of."""
        files = [model.files[path] for path in layer.paths]
        return await pools.WORK.run(_parts_of, files)

    async def _make(self, ref: Ref, digest: str) -> Image:
        async with self._turns:
            if digest in self._made:
                return self._made[digest]
            model = await self._models.open(ref._replace(digest=digest), whole=True)
            layers = [
                await self._hashed(model, files) for files in layers_of(list(model.files.values()))
            ]
            image = self._made[digest] = make_image(layers)
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
            return image

    async def _hashed(self, model: OpenModel, files: Sequence[File]) -> Layer:
        parts = await pools.WORK.run(_parts_of, files)
        size, hasher = sum(part.size for part in parts), hashlib.sha256()
        async with aclosing(self._models.stream(model, parts, 0, size)) as pieces:
            async for piece in pieces:
                await pools.WORK.run(hasher.update, piece)
        return Layer(f"sha256:{hasher.hexdigest()}", size, tuple(file.path for file in files))


def _parts_of(files: Sequence[File]) -> list[Part]:
    return [Part(None, one) if isinstance(one, bytes) else Part(one) for one in archive_of(files)]

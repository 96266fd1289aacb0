"""What registries know: manifests, ModelPack artifacts, layers of images."""

"""Signatures of models: made and checked by the OpenSSF model-signing library, stored beside the manifests."""

"""The data path: bytes in, bytes out, at the pace of whoever reads them."""

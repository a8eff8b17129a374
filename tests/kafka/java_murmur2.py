"""The hash of Kafka's Java client, as a reference."""

from __future__ import annotations


def murmur2(data: bytes) -> int:
    """Kafka's murmur2, line by line."""
    mask, m, r = 0xFFFFFFFF, 0x5BD1E995, 24
    h = 0x9747B28C ^ len(data)
    for i in range(len(data) // 4):
        k = data[i * 4] + (data[i * 4 + 1] << 8) + (data[i * 4 + 2] << 16) + (data[i * 4 + 3] << 24)
        k = k * m & mask
        k ^= k >> r
        k = k * m & mask
        h = h * m & mask
        h ^= k
    left, at = len(data) % 4, len(data) // 4 * 4
    if left >= 3:
        h ^= data[at + 2] << 16
    if left >= 2:
        h ^= data[at + 1] << 8
    if left >= 1:
        h ^= data[at]
        h = h * m & mask
    h ^= h >> 13
    h = h * m & mask
    return h ^ h >> 15

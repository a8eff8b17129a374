//! Keys and partitions. Their bytes never change (I2).

const M: u32 = 0x5BD1_E995;

/// Hash as Kafka's Java client does.
fn murmur2(data: &[u8]) -> u32 {
    let mut value = 0x9747_B28C ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        value = value.wrapping_mul(M) ^ (word ^ word >> 24).wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
        value = (value ^ tail).wrapping_mul(M);
    }
    value = (value ^ value >> 13).wrapping_mul(M);
    value ^ value >> 15
}

/// The partition that Java's default partitioner chooses for a key of these bytes.
pub fn partition(hash_bytes: &[u8], partitions: u32) -> u32 {
    (murmur2(hash_bytes) & 0x7FFF_FFFF) % partitions
}

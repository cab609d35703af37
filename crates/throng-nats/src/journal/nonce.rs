//! Numbers that are made of a node's nonce.

/// Begins a sum as FNV does.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// The number of a nonce: as random as that is, up to 64 bits.
pub(super) fn number(nonce: &str) -> u64 {
    nonce.bytes().fold(FNV_START, |sum, byte| mix(sum ^ u64::from(byte)))
}

/// A step of splitmix64.
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

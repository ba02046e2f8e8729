//! SHA-256 (FIPS 180-4).
//!
//! All hashes of Weir are computed here, with the implementation of the TLS library. It is about
//! twice as fast as a portable one on processors without SHA instructions.

use aws_lc_rs::digest::{SHA256, digest};

/// Returns the SHA-256 of these bytes.
pub fn sha256(bytes: impl AsRef<[u8]>) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes.as_ref()).as_ref());
    out
}

#[cfg(test)]
mod tests {
    use super::sha256;
    use crate::text::hex::hex;

    #[test]
    fn it_is_what_others_compute() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&sha256("abc")), abc);
        let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hex(&sha256("")), nothing);
    }
}

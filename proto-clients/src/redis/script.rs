//! Lua scripts, called by digest.

use sha1::{Digest, Sha1};

use super::Command;

/// A script and its SHA-1, which is its name in the server's cache.
#[derive(Debug, Clone)]
pub struct Script {
    source: &'static str,
    digest: [u8; 40],
}

impl Script {
    /// Computes the digest.
    pub fn new(source: &'static str) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut digest = [0; 40];
        for (pair, byte) in digest.chunks_exact_mut(2).zip(Sha1::digest(source)) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        Self { source, digest }
    }

    /// Begins `EVALSHA digest keys ..` for `args` keys and arguments together, of which the first `keys` are keys.
    pub fn command(&self, keys: usize, args: usize) -> Command {
        let mut command = Command::new("EVALSHA", args + 2);
        command.arg(&self.digest).arg_u64(keys as u64);
        command
    }

    /// `SCRIPT LOAD source`.
    pub fn load(&self) -> Command {
        let mut command = Command::new("SCRIPT", 2);
        command.arg(b"LOAD").arg(self.source.as_bytes());
        command
    }

    /// The digest in lower-case hexadecimal.
    pub fn digest(&self) -> &[u8; 40] {
        &self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_one_redis_uses() {
        // SCRIPT LOAD "return 1" answers this.
        assert_eq!(Script::new("return 1").digest(), b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}

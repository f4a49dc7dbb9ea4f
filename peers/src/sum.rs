//! What all peers have to see.

/// Over all descriptors: of each the address and the length have been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sum {
    pub count: u64,
    pub addresses: u64,
    pub lengths: u64,
}

impl Sum {
    #[inline]
    pub fn add(&mut self, address: u64, length: u32) {
        self.count += 1;
        self.addresses = self.addresses.wrapping_add(address);
        self.lengths += u64::from(length);
    }

    #[inline]
    pub fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.addresses = self.addresses.wrapping_add(other.addresses);
        self.lengths += other.lengths;
    }
}

//! What every fault is followed by: nothing is left, and a new port works.

use xskit::Umem;
use xskit_lab::{Lab, LabConfig};

use crate::{
    bench::{nothing_attached, umem, works},
    census::Census,
    support::{comes_home, near_interface},
};

/// Runs a fault, where the near end is, with memory for its ports. It returns with all of them dropped, and
/// with a lab that has working links.
pub(crate) fn nothing_is_left(config: &LabConfig, fault: impl FnOnce(&mut Lab, &Umem) + Send) {
    let Some(mut lab) = Lab::for_test_with(config) else { return };
    let umem = umem();
    // What libraries make once and keep.
    works_again(&lab, &umem);
    let before = Census::take();
    let netns = lab.near.netns().clone();
    netns.enter(|| fault(&mut lab, &umem));
    for _ in 0..2 {
        nothing_attached(&lab);
        before.is_unchanged();
        // The second time of a port that no fault met.
        works_again(&lab, &umem);
    }
}

/// A new port of the same memory receives and sends, and gives every frame back.
#[track_caller]
pub(crate) fn works_again(lab: &Lab, umem: &Umem) {
    lab.enter(|| {
        works(lab, umem, 0);
        comes_home(umem, &[(&near_interface(), 0)]);
    });
}

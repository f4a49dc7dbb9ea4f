//! At which NUMA node a UMEM's memory shall be.

use std::path::Path;

use crate::{
    Error, ErrorKind, Interface, Result, Step,
    sys::{
        mapping::Mapping,
        numa::{self, SYSFS},
    },
};

/// What the user said of it.
#[derive(Clone, Debug, Default)]
pub(super) enum Placement {
    /// Where whoever touches the memory first runs.
    #[default]
    Unsaid,
    /// At an interface's node, where that makes a difference.
    Near(Interface),
    /// At this node, or not at all.
    Node(u32),
}

/// The node to prefer, and whether it was asked for by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preference {
    node: u32,
    insists: bool,
}

impl Placement {
    /// The node to prefer, if any.
    pub(super) fn choose(&self) -> Result<Option<Preference>> {
        let nodes = numa::nodes(Path::new(SYSFS));
        match self {
            Self::Unsaid => Ok(None),
            Self::Near(interface) => {
                Ok(near(interface.facts()?.numa_node, &nodes.unwrap_or_default()))
            }
            Self::Node(node) => exactly(*node, nodes.as_deref()).map(Some),
        }
    }
}

/// An interface's node, where there are others, and it has memory itself.
fn near(node: Option<u32>, nodes: &[u32]) -> Option<Preference> {
    let node = node.filter(|node| nodes.len() > 1 && nodes.contains(node))?;
    Some(Preference { node, insists: false })
}

/// This node, unless it is known that there is no such one.
fn exactly(node: u32, nodes: Option<&[u32]>) -> Result<Preference> {
    match nodes {
        Some(nodes) if !nodes.contains(&node) => {
            let those: Vec<String> = nodes.iter().map(ToString::to_string).collect();
            Err(Error::new(
                Step::AllocateUmem,
                ErrorKind::NotFound,
                "there is no such NUMA node with memory",
            )
            .asked(format!("node {node}"))
            .hint(format!("this machine has {}; `near` finds an interface's", those.join(", "))))
        }
        _ => Ok(Preference { node, insists: true }),
    }
}

impl Preference {
    /// Sets it for memory that nobody has touched yet; the node that it will prefer.
    pub(super) fn apply(self, mapping: &Mapping) -> Result<Option<u32>> {
        let Self { node, insists } = self;
        match numa::prefer(mapping, node) {
            Ok(()) => Ok(Some(node)),
            // It works as well at another node, only slower.
            Err(_) if !insists => Ok(None),
            Err(source) => {
                let error =
                    Error::os(Step::AllocateUmem, "memory cannot be bound to a NUMA node", source)
                        .asked(format!("node {node}"));
                Err(match error.raw_os_error() {
                    Some(libc::EINVAL) => error
                        .with_kind(ErrorKind::NotFound)
                        .hint("there is no such node, or the process' cpuset does not allow it"),
                    Some(libc::ENOSYS) => error
                        .with_kind(ErrorKind::Unsupported)
                        .hint("the kernel knows no NUMA nodes: leave `numa_node` out"),
                    Some(libc::EPERM) => error
                        .hint("a seccomp filter forbids mbind, as some containers have: leave `numa_node` out"),
                    _ => error,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interfaces_node_counts_where_there_are_others() {
        let at = |node, nodes: &[u32]| near(node, nodes).map(|preference| preference.node);
        assert_eq!(at(Some(1), &[0, 1]), Some(1));
        assert_eq!(at(Some(0), &[0]), None, "one node");
        assert_eq!(at(None, &[0, 1]), None, "the device tells none");
        assert_eq!(at(Some(2), &[0, 1]), None, "a node without memory");
        assert_eq!(at(Some(0), &[]), None, "a kernel without nodes");
    }

    #[test]
    fn a_node_that_is_asked_for_has_to_be_there() {
        assert_eq!(exactly(1, Some(&[0, 1])).unwrap(), Preference { node: 1, insists: true });
        assert_eq!(exactly(7, None).unwrap(), Preference { node: 7, insists: true });
        let error = exactly(7, Some(&[0, 1])).unwrap_err();
        assert_eq!((error.step(), error.kind()), (Step::AllocateUmem, ErrorKind::NotFound));
        let text = error.to_string();
        assert!(text.contains("node 7") && text.contains("this machine has 0, 1"), "{text}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no mbind")]
    fn who_insists_is_told_that_the_kernel_refuses() {
        let mapping = Mapping::anonymous(4096, false).unwrap();
        let nowhere = |insists| Preference { node: 1023, insists }.apply(&mapping);
        assert_eq!(nowhere(false).unwrap(), None, "no node, and no error");
        let error = nowhere(true).unwrap_err();
        assert_eq!((error.step(), error.kind()), (Step::AllocateUmem, ErrorKind::NotFound));
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}

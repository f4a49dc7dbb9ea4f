//! Rules of ours in a NIC's flow table (ntuple): which, and taking them away.

use std::io;

use super::{
    Interface,
    record::Record,
    stale::{self, Change},
    steering_failed,
};
use crate::{
    error::Result,
    sys::{
        ethtool::{Ethtool, Feature},
        steering::FlowSpec,
    },
};

/// ethtool's name of the switch that lets a NIC have flow rules.
const NTUPLE: &str = "rx-ntuple-filter";

/// What is changed, in errors.
const RULES: &str = "the flow rules (ntuple)";

/// What was changed of a NIC's flow table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowTable {
    /// The table was switched on.
    switched: bool,
    rules: Vec<Placed>,
}

/// A rule in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placed {
    location: u32,
    queue: u32,
}

impl Placed {
    fn write(self) -> String {
        format!("rule {} {}\n", self.location, self.queue)
    }
}

impl FlowTable {
    fn undo_by(&self, ethtool: &Ethtool, interface: &Interface) -> Result<()> {
        self.try_undo(ethtool, interface.index())
            .map_err(|source| steering_failed(interface, RULES, source))
    }

    fn try_undo(&self, ethtool: &Ethtool, index: u32) -> io::Result<()> {
        if *self == Self::default() {
            return Ok(());
        }
        let name = ethtool.name_of(index)?;
        let mut outcome = Ok(());
        for &Placed { location, queue } in &self.rules {
            // Ours has vanished, and the place has got somebody else's.
            if ethtool.flow_queue(&name, location).is_ok_and(|its| its != queue) {
                continue;
            }
            match ethtool.delete_flow(&name, location) {
                // Vanished by itself, or somebody else took it away.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => outcome = Err(error),
                Ok(()) => {}
            }
        }
        if self.switched {
            let mut features = ethtool.features(&name)?;
            features.retain(|feature| is_switch(feature) && feature.active);
            // Never switched on, or off again already: that takes no privilege.
            if !features.is_empty() {
                ethtool.set_features(&name, &features, false)?;
            }
        }
        outcome
    }
}

impl Change for FlowTable {
    const WHAT: &'static str = "flow-rules";

    /// Whether the table was switched on, then a line for each rule: its location and queue.
    fn write(&self) -> String {
        let switch = if self.switched { "switched\n" } else { "on\n" };
        let rules = self.rules.iter().map(|rule| rule.write());
        std::iter::once(switch.to_owned()).chain(rules).collect()
    }

    fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let switched = match lines.next()? {
            "switched" => true,
            "on" => false,
            _ => return None,
        };
        let rules = lines.map(|line| {
            let (location, queue) = line.strip_prefix("rule ")?.split_once(' ')?;
            Some(Placed { location: location.parse().ok()?, queue: queue.parse().ok()? })
        });
        Some(Self { switched, rules: rules.collect::<Option<_>>()? })
    }

    fn undo(&self, interface: &Interface) -> Result<()> {
        let ethtool =
            Ethtool::open().map_err(|source| steering_failed(interface, RULES, source))?;
        self.undo_by(&ethtool, interface)
    }
}

fn is_switch(feature: &Feature) -> bool {
    feature.name == NTUPLE
}

/// Keeps rules in a NIC's flow table. Dropping it takes them away again, and switches the table off where it
/// was off.
#[derive(Debug)]
pub(crate) struct Flows {
    ethtool: Ethtool,
    interface: Interface,
    table: FlowTable,
    locations: Vec<u32>,
    record: Option<Record>,
}

impl Flows {
    /// Puts the rules there.
    pub(crate) fn install(interface: &Interface, specs: &[FlowSpec]) -> Result<Self> {
        stale::restore_first();
        let failed = |source| steering_failed(interface, RULES, source);
        let ethtool = Ethtool::open().map_err(failed)?;
        let name = ethtool.name_of(interface.index()).map_err(failed)?;
        let features = ethtool.features(&name).map_err(failed)?;
        let off = features
            .iter()
            .find(|feature| is_switch(feature) && !feature.active && feature.changeable);
        let table = FlowTable { switched: off.is_some(), rules: Vec::new() };
        let record = stale::write_down(interface, &table);
        // From here on dropping it undoes what was done.
        let mut flows =
            Self { ethtool, interface: interface.clone(), table, locations: Vec::new(), record };
        if let Some(switch) = off {
            flows.ethtool.set_features(&name, [switch], true).map_err(failed)?;
        }
        for spec in specs {
            let location = flows.ethtool.insert_flow(&name, spec).map_err(failed)?;
            flows.note(Placed { location, queue: spec.queue() });
        }
        Ok(flows)
    }

    /// Only now is it known where it is: a process killed just before leaves one rule behind.
    fn note(&mut self, rule: Placed) {
        self.table.rules.push(rule);
        self.locations.push(rule.location);
        if let Some(record) = &mut self.record {
            // What cannot be written down is restored by this process alone.
            record.append(&rule.write()).ok();
        }
    }

    pub(crate) fn interface(&self) -> &Interface {
        &self.interface
    }

    pub(crate) fn locations(&self) -> &[u32] {
        &self.locations
    }

    pub(crate) fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// Takes the rules away, once.
    pub(crate) fn undo(&mut self) -> Result<()> {
        let undone = std::mem::take(&mut self.table).undo_by(&self.ethtool, &self.interface);
        stale::close(self.record.take(), undone)
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        // Nobody is left to be told: `undo` is for those who want to know.
        self.undo().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_record_is_read_back_while_it_grows() {
        let first = Placed { location: 1023, queue: 1 };
        let mut table = FlowTable { switched: true, rules: Vec::new() };
        let mut text = table.write();
        for rule in [first, Placed { location: 7, queue: 0 }] {
            table.rules.push(rule);
            text += &rule.write();
        }
        assert_eq!(text, "switched\nrule 1023 1\nrule 7 0\n");
        assert_eq!(table.write(), text);
        assert_eq!(FlowTable::read(&text), Some(table));
        assert_eq!(FlowTable::read("on\n"), Some(FlowTable::default()));
        for nonsense in ["", "off\n", "on\nrule 1\n", "on\nrule 1 x\n", "on\n\n"] {
            assert_eq!(FlowTable::read(nonsense), None, "{nonsense:?}");
        }
    }

    /// Restoring goes as far as the device, which has no table.
    #[test]
    fn rules_of_a_device_without_a_table_are_not_taken_away() {
        let lo = Interface::by_name("lo").unwrap();
        let table = FlowTable { switched: false, rules: vec![Placed { location: 1, queue: 0 }] };
        assert_eq!(table.undo(&lo).unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(FlowTable::default().undo(&lo).is_ok(), "there is nothing to undo");
    }
}

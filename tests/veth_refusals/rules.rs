//! Rules that cannot be, or cannot be kept.

use xskit::{ErrorKind, Rule, Rules, Step, program::VlanTags};
use xskit_lab::Lab;

use crate::bench::{
    Expected, PORT, all_free, alone, nothing_attached, port, receives, refused, umem, works,
};

fn expected<'a>(kind: ErrorKind, says: &'a [&'a str]) -> Expected<'a> {
    Expected { step: Step::Rules, kind, interface: Some("near0"), queue: None, errno: None, says }
}

fn contradictions() -> [(Rule, &'static [&'static str]); 6] {
    let prefix = |text: &str| text.parse().unwrap();
    [
        (
            Rule::new().source(prefix("10.0.0.0/8")).destination(prefix("fd00::/8")),
            &["of different IP versions", "source=10.0.0.0/8,destination=fd00::/8"],
        ),
        (
            Rule::new().ether_type(0x86dd).source(prefix("10.0.0.0/8")),
            &["the addresses are of EtherType 0x0800, not 0x86dd"],
        ),
        (
            Rule::new().ether_type(0x0806).destination_port(53),
            &["protocol and ports belong to IP, not to EtherType 0x0806"],
        ),
        (
            Rule::new().protocol(1).destination_port(53),
            &["IP protocol 1 has no ports", "protocol=1,destination-port=53"],
        ),
        (Rule::new().vlan(4095), &["VLAN id 4095 is not within 0–4094"]),
        (Rule::new(), &["a rule without any field matches every packet", "Rules::all()"]),
    ]
}

#[test]
fn rules_that_contradict_themselves() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            for (rule, says) in contradictions() {
                let expected = expected(ErrorKind::InvalidInput, says);
                let rules = Rules::from(vec![Rule::new().protocol(6), rule.clone()]);
                expected.is(&refused(|| port(&umem).rules(rules.clone()).open()));
                let mut one = Rules::none();
                Expected { interface: None, ..expected }.is(&refused(|| one.push(rule.clone())));
                assert_eq!(one, Rules::none());
            }
            all_free(&umem);
            nothing_attached(&lab);
            works(&lab, &umem, 0);
        });
    });
}

#[test]
fn sixty_five_rules() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            let rules = |count: u16| -> Rules {
                (0..count).map(|more| Rule::new().destination_port(PORT + more)).collect()
            };
            let expected = expected(
                ErrorKind::InvalidInput,
                &["65 rules", "at most 64", "prefixes cover many addresses"],
            );
            expected.is(&refused(|| port(&umem).rules(rules(65)).open()));
            let mut full = rules(64);
            let error = refused(|| full.push(Rule::new().protocol(1)));
            Expected { interface: None, ..expected }.is(&error);
            assert_eq!(full, rules(64));
            all_free(&umem);
            nothing_attached(&lab);
            drop(port(&umem).rules(full).open().unwrap());
            works(&lab, &umem, 0);
        });
    });
}

#[test]
fn an_exchange_that_is_refused_leaves_the_old_rules() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            let mut port = port(&umem).open().unwrap();
            let mut socket = port.take_queue(0).unwrap();
            let attached = lab.near.xdp_program().unwrap();
            for (rule, says) in contradictions() {
                let rules = Rules::from(vec![rule]);
                let error = refused(|| port.set_rules(&rules));
                expected(ErrorKind::InvalidInput, says).is(&error);
            }
            let vlan = Rules::from(vec![Rule::new().vlan(7)]);
            expected(ErrorKind::Unsupported, &["VlanTags::Visible"])
                .is(&refused(|| port.set_rules(&vlan)));
            assert_eq!(lab.near.xdp_program().unwrap(), attached, "the same program");
            receives(&lab, &mut socket, &lab.raw().unwrap());
        });
    });
}

#[test]
fn vlans_on_veth() {
    alone(|| {
        let Some(lab) = Lab::for_test() else { return };
        lab.enter(|| {
            let umem = umem();
            let rules = Rules::from(vec![Rule::new().vlan(7)]);
            let error = refused(|| port(&umem).rules(rules.clone()).open());
            expected(
                ErrorKind::Unsupported,
                &[
                    "rules on VLANs",
                    "TX VLAN offload is on at the other end",
                    "tx-vlan-hw-insert off",
                    "VlanTags::Visible",
                ],
            )
            .is(&error);
            all_free(&umem);
            nothing_attached(&lab);
            // What the hint says works: the lab's offloads are off.
            let config = port(&umem).rules(rules).vlan_tags(VlanTags::Visible);
            let mut port = config.open().unwrap();
            let mut socket = port.take_queue(0).unwrap();
            let frame = lab.flow(PORT).vlan(7).frame(b"tagged, and of more than 60 bytes");
            lab.raw().unwrap().send(&frame).unwrap();
            let mut batch = umem.batch(8);
            let ready = socket.wait(xskit::Interest::READABLE, crate::bench::PATIENCE).unwrap();
            assert!(ready.readable());
            socket.recv(&mut batch).unwrap();
            assert_eq!(batch.packets().next().unwrap().head(), frame);
            drop((socket, port, batch));
            works(&lab, &umem, 0);
        });
    });
}

//! What the two hot functions are made of: no locked instruction and no fence for each packet, and at most
//! one for each batch.

use std::{collections::HashMap, env, process::Command};

use anyhow::{Context, Result, ensure};

/// The two: whole batches pass through one call of each. `Socket::recv` is inlined where it is called, and
/// comes down to the first.
const HOT: [&str; 2] =
    ["xskit::socket::receiver::Receiver::recv_with", "xskit::socket::sender::Sender::send"];

/// What they call now and then only, by a part of the name.
const NOW_AND_THEN: &[(&str, &str)] = &[
    ("recycle_refused", "packets that the kernel would refuse"),
    ("recycle_received", "packets that make no sense"),
    ("discard_faulty", "the same"),
    ("skip_packet", "packets longer than a batch"),
    ("collect_timestamps", "timestamps that were asked for"),
    ("::lose", "descriptors that make no sense"),
    ("Pool::", "the pool that all share: once for many batches"),
    ("give_to", "the same"),
    ("take_from", "the same"),
    ("with_common", "rings that several sockets share"),
    ("complete_with_clones", "clones"),
    ("kick", "a system call"),
    ("wake", "a system call"),
    ("Link::check", "a system call"),
];

/// An instruction: where, and what.
type Line = (u64, String);

/// Functions by the addresses of the pointers that calls go through.
type Pointers = HashMap<u64, String>;

/// Checks both, and says what was found.
pub fn check() -> Result<Vec<String>> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(vec!["locked instructions are looked for on x86-64 only".to_owned()]);
    }
    let functions = disassemble()?;
    let indirect = pointers(&functions)?;
    HOT.iter().map(|name| check_one(&functions, &indirect, name)).collect()
}

fn check_one(
    functions: &HashMap<String, Vec<Line>>,
    indirect: &Pointers,
    hot: &str,
) -> Result<String> {
    let mut names = vec![hot.to_owned()];
    let mut locked = 0;
    let mut seen = 0;
    while let Some(name) = names.get(seen).cloned() {
        seen += 1;
        let code = functions.get(&name).with_context(|| format!("no function {name}"))?;
        for (at, text) in code.iter().filter(|(_, text)| is_locked(text)) {
            locked += 1;
            ensure!(!comes_again(code, *at), "{name}: `{text}` is in a loop");
        }
        for callee in code.iter().filter_map(|(_, text)| called(text, indirect)) {
            let ours = callee.starts_with("xskit::") || callee.starts_with("<xskit::");
            let rare = NOW_AND_THEN.iter().any(|(part, _)| callee.contains(part));
            if ours
                && !rare
                && functions.contains_key(callee)
                && !names.iter().any(|name| name == callee)
            {
                names.push(callee.to_owned());
            }
        }
    }
    ensure!(locked <= 1, "{hot}: {locked} locked or fencing instructions for a batch");
    let rest = names.len() - 1;
    Ok(format!("{hot} and {rest} functions that it calls: {locked} locked or fencing instructions"))
}

/// `lock add`, `mfence`, and `xchg` with memory, which locks without saying so.
fn is_locked(text: &str) -> bool {
    text.starts_with("lock ")
        || text.starts_with("mfence")
        || (text.starts_with("xchg") && text.contains('('))
}

/// Whether an instruction can be reached from itself. By the ways through the code and not by its order:
/// what is rare lies at a function's end, and jumps back from there.
fn comes_again(code: &[Line], start: u64) -> bool {
    let index = |at: u64| code.binary_search_by_key(&at, |(at, _)| *at).ok();
    let next = |from: usize| {
        let text = code[from].1.as_str();
        let jump = text.starts_with('j').then(|| target(text).and_then(index)).flatten();
        let ends = ["jmp", "ret", "ud2"].iter().any(|end| text.starts_with(end));
        jump.into_iter().chain((!ends && from + 1 < code.len()).then_some(from + 1))
    };
    let mut seen = vec![false; code.len()];
    let mut open: Vec<usize> = index(start).into_iter().flat_map(next).collect();
    while let Some(at) = open.pop() {
        if code[at].0 == start {
            return true;
        }
        if !std::mem::replace(&mut seen[at], true) {
            open.extend(next(at));
        }
    }
    false
}

/// Where a jump goes.
fn target(jump: &str) -> Option<u64> {
    u64::from_str_radix(jump.split_whitespace().nth(1)?, 16).ok()
}

/// Whom a call is of, if it says.
fn called<'a>(text: &'a str, indirect: &'a Pointers) -> Option<&'a str> {
    let to = text.strip_prefix("call").or_else(|| text.strip_prefix("jmp"))?;
    if let Some((_, pointer)) = to.split_once("(%rip)").filter(|_| to.contains('*')) {
        let address = pointer.split_once("# ")?.1.split_whitespace().next()?;
        return indirect.get(&u64::from_str_radix(address, 16).ok()?).map(String::as_str);
    }
    to.split_once('<')?.1.strip_suffix('>').filter(|name| !name.contains("+0x"))
}

/// What lies behind the pointers that the loader fills in: position-independent code calls through them.
fn pointers(functions: &HashMap<String, Vec<Line>>) -> Result<Pointers> {
    let starts: HashMap<u64, &String> = functions
        .iter()
        .filter_map(|(name, code)| code.first().map(|(at, _)| (*at, name)))
        .collect();
    let text = objdump(&["--dynamic-reloc"])?;
    let pointer = |line: &str| {
        let (at, to) = line.split_once("R_X86_64_RELATIVE")?;
        let to = u64::from_str_radix(to.trim().strip_prefix("*ABS*+0x")?, 16).ok()?;
        Some((u64::from_str_radix(at.trim(), 16).ok()?, (*starts.get(&to)?).clone()))
    };
    Ok(text.lines().filter_map(pointer).collect())
}

/// All functions of this program.
fn disassemble() -> Result<HashMap<String, Vec<Line>>> {
    let text = objdump(&["--disassemble", "--demangle", "--no-show-raw-insn", "--section=.text"])?;
    let mut functions = HashMap::new();
    let mut current: Option<(String, Vec<Line>)> = None;
    for line in text.lines() {
        if let Some((_, name)) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) {
            functions.extend(current.replace((name.to_owned(), Vec::new())));
        } else if let (Some((at, text)), Some((_, code))) = (line.split_once(":\t"), &mut current) {
            if let Ok(at) = u64::from_str_radix(at.trim(), 16) {
                code.push((at, text.trim().to_owned()));
            }
        }
    }
    functions.extend(current);
    Ok(functions)
}

/// What binutils' objdump says about this program.
fn objdump(arguments: &[&str]) -> Result<String> {
    let output = Command::new("objdump")
        .args(arguments)
        .arg(env::current_exe()?)
        .output()
        .context("objdump, of binutils, is not installed")?;
    ensure!(output.status.success(), "objdump: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(code: &[(u64, &str)]) -> Vec<Line> {
        code.iter().map(|(at, text)| (*at, (*text).to_owned())).collect()
    }

    #[test]
    fn a_locked_instruction_in_a_loop_is_found() {
        let code =
            function(&[(16, "mov %rax,%rbx"), (20, "lock incq (%rdi)"), (24, "jne 10 <f+0x0>")]);
        let functions = HashMap::from([("f".to_owned(), code)]);
        assert!(
            check_one(&functions, &Pointers::new(), "f")
                .unwrap_err()
                .to_string()
                .contains("in a loop")
        );
    }

    #[test]
    fn a_jump_back_from_the_end_is_no_loop() {
        let code = function(&[
            (16, "je 32 <f+0x16>"),
            (20, "lock incq (%rdi)"),
            (24, "jmp 28 <f+0xc>"),
            (28, "nop"),
            (40, "ret"),
            (50, "jmp 14 <f+0x4>"),
        ]);
        assert!(!comes_again(&code, 20));
        let code = function(&[(20, "lock incq (%rdi)"), (24, "nop"), (28, "jmp 14 <f+0x0>")]);
        assert!(comes_again(&code, 20));
    }

    #[test]
    fn calls_through_pointers_are_followed() {
        let outer = function(&[
            (16, "mfence"),
            (20, "call *0x2280e1(%rip)        # 32bac0 <_DYNAMIC+0x658>"),
        ]);
        let inner = function(&[(64, "lock incq (%rdi)"), (68, "ret")]);
        let functions = HashMap::from([("f".to_owned(), outer), ("xskit::g".to_owned(), inner)]);
        let indirect = Pointers::from([(0x32_bac0, "xskit::g".to_owned())]);
        assert!(
            check_one(&functions, &indirect, "f").unwrap_err().to_string().contains("2 locked")
        );
    }

    #[test]
    fn a_second_one_is_found_in_what_is_called() {
        let outer = function(&[(16, "mfence"), (20, "call 40 <xskit::g>")]);
        let inner = function(&[(64, "xchg %rax,(%rdi)"), (68, "ret")]);
        let functions = HashMap::from([("f".to_owned(), outer), ("xskit::g".to_owned(), inner)]);
        assert!(
            check_one(&functions, &Pointers::new(), "f")
                .unwrap_err()
                .to_string()
                .contains("2 locked")
        );
        assert!(check_one(&functions, &Pointers::new(), "xskit::g").is_ok());
    }
}

//! Debian's package archive, seen through apt without touching the machine's own lists.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, bail, ensure};

use super::programs::{output, quietly};

/// How long the package lists are good: kernels are published every week or two.
const LISTS_LAST: Duration = Duration::from_secs(24 * 60 * 60);

/// A view of the archive in a folder of its own.
pub(super) struct Archive {
    folder: PathBuf,
}

impl Archive {
    /// Opens the view and fetches the package lists, unless they are fresh.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let archive = Self { folder: folder.to_owned() };
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part)).context("the archive's folder")?;
        }
        let stamp = folder.join("updated");
        if age(&stamp).is_none_or(|age| age > LISTS_LAST) {
            fs::write(folder.join("sources.list"), sources()?)?;
            quietly(archive.apt("apt-get").arg("update")).context("the package lists")?;
            fs::write(stamp, "")?;
        }
        Ok(archive)
    }

    /// The names of the packages that match this regular expression.
    pub(super) fn names(&self, pattern: &str) -> Result<Vec<String>> {
        let text = output(self.apt("apt-cache").args(["search", "--names-only", pattern]))?;
        let name = |line: &str| line.split_whitespace().next().map(str::to_owned);
        Ok(text.lines().filter_map(name).collect())
    }

    /// The names of the packages that this one depends on, alternatives included.
    pub(super) fn dependencies(&self, package: &str) -> Result<Vec<String>> {
        let text = output(self.apt("apt-cache").args(["show", "--no-all-versions", package]))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap_or("");
        let names = line.split([',', '|']).filter_map(|name| name.split_whitespace().next());
        Ok(names.map(str::to_owned).collect())
    }

    /// Fetches a package and unpacks it, without installing it.
    pub(super) fn unpack(&self, package: &str, into: &Path) -> Result<()> {
        let folder = self.folder.join("fetched");
        fs::create_dir_all(&folder)?;
        quietly(self.apt("apt-get").args(["download", package]).current_dir(&folder))?;
        // Only those that this run fetched are here: nobody else knows the folder.
        let start = format!("{package}_");
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start)) {
                quietly(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(into))?;
                fs::remove_file(path)?;
                return Ok(());
            }
        }
        bail!("apt-get says that it has fetched {package}, and it is not there");
    }

    /// An apt command that sees this view alone.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let folder = self.folder.display();
        for option in [
            format!("Dir::Etc::sourcelist={folder}/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".into(),
            format!("Dir::State::lists={folder}/lists"),
            format!("Dir::Cache={folder}/cache"),
            // The folder need not be open to apt's own user.
            "APT::Sandbox::User=root".into(),
            "APT::Architecture=amd64".into(),
            "Acquire::Languages=none".into(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
            "Acquire::Retries=3".into(),
            "Acquire::http::Timeout=30".into(),
        ] {
            command.args(["--option", &option]);
        }
        command.env("LC_ALL", "C");
        command
    }
}

/// Where kernels come from: 6.1 from Debian 12, 6.12 from its security archive, later ones from the
/// backports to Debian 13. By the mirrors that the machine itself uses.
fn sources() -> Result<String> {
    let format = "$(RELEASE) $(COMPONENT) $(REPO_URI)";
    let targets = output(Command::new("apt-get").env("LC_ALL", "C").args([
        "indextargets",
        "--format",
        format,
        "Created-By: Packages",
    ]))?;
    let mirrors = Mirrors::find(&targets)?;
    let key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]";
    let Mirrors { debian, security } = mirrors;
    Ok(format!(
        "deb {key} {debian} bookworm main\n\
         deb {key} {security} bookworm-security main\n\
         deb {key} {debian} trixie-backports main\n"
    ))
}

/// The two archives of Debian.
#[derive(Debug, PartialEq)]
struct Mirrors {
    debian: String,
    security: String,
}

impl Mirrors {
    /// Finds them in lines of `release component address`.
    fn find(targets: &str) -> Result<Self> {
        let find = |wanted: fn(&str) -> bool| {
            targets.lines().find_map(|line| {
                let mut words = line.split(' ');
                let (release, component) = (words.next()?, words.next()?);
                let address = words.next()?;
                (component == "main" && wanted(release)).then(|| address.to_owned())
            })
        };
        let debian = find(|release| ["bookworm", "trixie"].contains(&release));
        let security = find(|release| release.ends_with("-security"));
        let (debian, security) = debian.zip(security).context(
            "apt's sources do not name Debian 12 or 13 and its security archive, where the kernels are",
        )?;
        ensure!(debian != security, "apt's sources have one address for both archives");
        Ok(Self { debian, security })
    }
}

/// How old the file is, if it is there.
pub(super) fn age(path: &Path) -> Option<Duration> {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).ok()?;
    SystemTime::now().duration_since(modified).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirrors_are_those_of_the_machine() {
        let targets = "nodistro main https://example.org/node/\n\
                       bookworm contrib http://example.org/contrib/\n\
                       bookworm main http://example.org/debian/\n\
                       bookworm-updates main http://example.org/updates/\n\
                       bookworm-security main http://example.org/security/\n";
        let expected = Mirrors {
            debian: "http://example.org/debian/".into(),
            security: "http://example.org/security/".into(),
        };
        assert_eq!(Mirrors::find(targets).unwrap(), expected);
        let error = Mirrors::find("noble main http://example.org/\n").unwrap_err().to_string();
        assert!(error.contains("Debian 12"), "{error}");
    }
}

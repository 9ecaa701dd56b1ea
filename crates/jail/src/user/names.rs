//! The users and groups that an image names.

/// How many users and groups a container has: 0 and up.
pub(crate) const CONTAINER_IDS: u32 = 0x1_0000;
/// Most groups of a user besides the first one.
const MOST_GROUPS: usize = 1024;

/// A user of a container, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    pub user: u32,
    pub group: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// The home folder.
    pub home: Option<String>,
}

/// Why a user is not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UserError {
    #[error("`{user}` in /etc/passwd of the image has no number `{text}`")]
    Entry { user: String, text: String },
    #[error("there is no user `{0}` in /etc/passwd of the image; give a number")]
    NoUser(String),
    #[error("there is no group `{0}` in /etc/group of the image; give a number")]
    NoGroup(String),
    #[error("`{0}` is too large for a user or group")]
    Number(String),
    #[error("`{spec}`: a container has users and groups up to {}, not {id}", CONTAINER_IDS - 1)]
    Id { spec: String, id: u32 },
    #[error("`{0}` is in more than {MOST_GROUPS} groups of the image")]
    Groups(String),
}

/// Looks a user up in the texts of `/etc/passwd` and `/etc/group`. The error names the missing
/// entry.
pub(crate) fn look_up(spec: &str, passwd: &str, group_file: &str) -> Result<User, UserError> {
    let (name, group) = spec.split_once(':').unwrap_or((spec, ""));
    let name = if name.is_empty() { "0" } else { name };
    let number = number(name)?;
    let entry =
        entries::<7>(passwd).find(|[user, _, id, ..]| *user == name || (number.is_some() && id.parse().ok() == number));
    let mut found = match (entry, number) {
        (Some([user, _, id, first, _, home, _]), _) => {
            let whole = |text: &str| {
                text.parse().map_err(|_| UserError::Entry { user: user.to_owned(), text: text.to_owned() })
            };
            let home = Some(home.to_owned()).filter(|home| !home.is_empty());
            User { user: whole(id)?, group: whole(first)?, groups: Vec::new(), home }
        }
        // A user that is given as a number needs no entry.
        (None, Some(user)) => User { user, ..User::default() },
        (None, None) => return Err(UserError::NoUser(name.to_owned())),
    };
    if group.is_empty() {
        let member = entry.map(|[user, ..]| user);
        let is_member = |members: &str| member.is_some_and(|member| members.split(',').any(|other| other == member));
        let of = entries::<4>(group_file).filter(|[.., members]| is_member(members));
        found.groups = of.filter_map(|[_, _, id, _]| id.parse().ok()).filter(|id| *id != found.group).collect();
    } else {
        let by_name =
            || entries::<4>(group_file).find(|[name, ..]| *name == group).and_then(|[_, _, id, _]| id.parse().ok());
        let id = self::number(group)?.or_else(by_name);
        found.group = id.ok_or_else(|| UserError::NoGroup(group.to_owned()))?;
    }
    for id in [found.user, found.group].iter().chain(&found.groups) {
        if *id >= CONTAINER_IDS {
            return Err(UserError::Id { spec: spec.to_owned(), id: *id });
        }
    }
    if found.groups.len() > MOST_GROUPS {
        return Err(UserError::Groups(spec.to_owned()));
    }
    Ok(found)
}

/// The number in a text; `None`: it is a name.
fn number(text: &str) -> Result<Option<u32>, UserError> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| UserError::Number(text.to_owned()))
}

/// The lines of a file that have so many fields. Other lines are skipped, as the C library does.
fn entries<const N: usize>(file: &str) -> impl Iterator<Item = [&str; N]> {
    file.lines().filter_map(|line| <[&str; N]>::try_from(line.split(':').collect::<Vec<_>>()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\n# a comment\n\nbad line\nweb:x:33:44:,,,:/var/www:/bin/false\nodd:x:x:1::/:\n";
    const GROUP: &str = "root:x:0:\nweb:x:44:\ndata:x:100:web,other\nlog:x:101:other,web\nwide:x:70000:far\n";

    fn found(spec: &str) -> Result<(u32, u32, Vec<u32>), UserError> {
        look_up(spec, PASSWD, GROUP).map(|User { user, group, groups, .. }| (user, group, groups))
    }

    #[test]
    fn users_are_looked_up_as_other_runtimes_do() {
        for spec in ["", "0", "root", ":"] {
            assert_eq!(found(spec), Ok((0, 0, vec![])), "{spec}");
        }
        assert_eq!(found("web"), Ok((33, 44, vec![100, 101])));
        assert_eq!(found("33"), found("web"), "a number has an entry too");
        assert_eq!(found("web:data"), Ok((33, 100, vec![])), "with a group, that is the only one");
        assert_eq!(found("web:7"), Ok((33, 7, vec![])));
        assert_eq!(found(":data"), Ok((0, 100, vec![])));
        assert_eq!(found("1234"), Ok((1234, 0, vec![])), "a number needs no entry");
        assert_eq!(look_up("1234:5", "", ""), Ok(User { user: 1234, group: 5, ..User::default() }));
        assert_eq!(look_up("web", PASSWD, GROUP).unwrap().home.as_deref(), Some("/var/www"));
    }

    #[test]
    fn what_is_missing_is_said() {
        for (spec, text) in [
            ("nobody", "no user `nobody` in /etc/passwd"),
            ("web:nobody", "no group `nobody` in /etc/group"),
            ("65536", "users and groups up to 65535, not 65536"),
            ("web:wide", "users and groups up to 65535, not 70000"),
            ("99999999999", "`99999999999` is too large"),
            ("odd", "has no number `x`"),
        ] {
            let error = found(spec).unwrap_err().to_string();
            assert!(error.contains(text), "{spec}: {error}");
        }
    }

    proptest! {
        /// For all contents of an image's files, the found user is one of the container's users,
        /// and is the requested one.
        #[test]
        fn nobody_is_found_who_was_not_asked_for(spec in "[a-c0-9:]{0,8}", passwd in file(7), group in file(4)) {
            if let Ok(found) = look_up(&spec, &passwd, &group) {
                prop_assert!(found.user < CONTAINER_IDS && found.group < CONTAINER_IDS);
                prop_assert!(found.groups.iter().all(|id| *id < CONTAINER_IDS));
                let name = spec.split(':').next().unwrap();
                let name = if name.is_empty() { "0" } else { name };
                let by_number = name.parse() == Ok(found.user);
                let by_name = passwd.lines().any(|line| line.starts_with(&format!("{name}:")) && line.contains(&format!(":{}:", found.user)));
                prop_assert!(by_number || by_name, "{spec}: {found:?}");
            }
        }
    }

    /// Lines with about so many fields.
    fn file(fields: usize) -> impl Strategy<Value = String> {
        let line = prop::collection::vec("[a-c]{0,2}|[0-9]{1,6}|x|[a-c],[a-c]", fields - 1..fields + 2);
        prop::collection::vec(line.prop_map(|fields| fields.join(":")), 0..6).prop_map(|lines| lines.join("\n"))
    }
}

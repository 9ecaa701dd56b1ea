//! Decodes values.

use super::EncodingError;
use rmp::Marker;
use serde::de::value::{BorrowedStrDeserializer, SeqDeserializer};
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

/// Decodes a value, which must be all of `bytes`.
pub fn from_bytes<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, EncodingError> {
    from_bytes_observed(bytes, |_, _, _| {})
}

/// Called with each field and variant that decoding looks for: the name of its type, its own name,
/// and whether the input has it. Tests measure with it which fields golden files cover.
pub type Observe = fn(&'static str, &'static str, bool);

/// Decodes a value, and reports its fields to `observe`.
pub fn from_bytes_observed<'de, T: Deserialize<'de>>(bytes: &'de [u8], observe: Observe) -> Result<T, EncodingError> {
    let mut decoder = Decoder { rest: bytes, observe };
    let value = T::deserialize(&mut decoder)?;
    if decoder.rest.is_empty() { Ok(value) } else { Err(EncodingError::new("it is too long")) }
}

struct Decoder<'de> {
    rest: &'de [u8],
    observe: Observe,
}

/// The elements of a list.
struct Elements<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    read: usize,
    left: usize,
}

/// The entries of a map that is not a struct.
struct Entries<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: usize,
}

/// The fields of a struct: first those that were written, then the others, as zeros.
struct Fields<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: usize,
    /// The name of the struct, for errors.
    of: &'static str,
    fields: &'static [&'static str],
    /// Of each field, whether it was read: a bit.
    read: u128,
    /// The field that is read now, or was read last.
    current: usize,
}

/// An enumeration's variant.
struct Variant<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    of: &'static str,
    name: &'static str,
    has_content: bool,
}

/// Stands for the value of a field that was left out.
struct Zero {
    observe: Observe,
}

impl<'de> Decoder<'de> {
    fn take(&mut self, length: usize) -> Result<&'de [u8], EncodingError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(|| EncodingError::new("it is cut off"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], EncodingError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or_else(|| EncodingError::new("it is cut off"))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn marker(&mut self) -> Result<Marker, EncodingError> {
        self.array().map(|[byte]| Marker::from_u8(byte))
    }

    fn peek(&self) -> Option<Marker> {
        self.rest.first().map(|byte| Marker::from_u8(*byte))
    }

    fn length8(&mut self) -> Result<usize, EncodingError> {
        self.array().map(|[length]| length.into())
    }

    fn length16(&mut self) -> Result<usize, EncodingError> {
        self.array().map(|length| u16::from_be_bytes(length).into())
    }

    fn length32(&mut self) -> Result<usize, EncodingError> {
        let length = u32::from_be_bytes(self.array()?);
        usize::try_from(length).map_err(|_| EncodingError::new("it is cut off"))
    }

    fn text(&mut self, length: usize) -> Result<&'de str, EncodingError> {
        std::str::from_utf8(self.take(length)?).map_err(|_| EncodingError::new("a text is not UTF-8"))
    }

    /// A text where the input must have one.
    fn name(&mut self) -> Result<&'de str, EncodingError> {
        let length = match self.marker()? {
            Marker::FixStr(length) => length.into(),
            Marker::Str8 => self.length8()?,
            Marker::Str16 => self.length16()?,
            Marker::Str32 => self.length32()?,
            other => return Err(unexpected(other, "a name")),
        };
        self.text(length)
    }

    /// The number of entries of a map, where the input must have one.
    fn map(&mut self) -> Result<usize, EncodingError> {
        match self.marker()? {
            Marker::FixMap(length) => Ok(length.into()),
            Marker::Map16 => self.length16(),
            Marker::Map32 => self.length32(),
            other => Err(unexpected(other, "a map")),
        }
    }

    fn list<V: Visitor<'de>>(&mut self, length: usize, visitor: V) -> Result<V::Value, EncodingError> {
        let mut elements = Elements { decoder: self, read: 0, left: length };
        let value = visitor.visit_seq(&mut elements)?;
        match elements.left {
            0 => Ok(value),
            left => Err(EncodingError::new(format!("a list has {left} elements too many"))),
        }
    }

    fn fields<V: Visitor<'de>>(
        &mut self,
        of: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, EncodingError> {
        let left = self.map()?;
        visitor.visit_map(Fields { decoder: self, left, of, fields, read: 0, current: 0 })
    }
}

fn unexpected(found: Marker, expected: &str) -> EncodingError {
    EncodingError::new(format!("expected {expected}, found {found:?}"))
}

impl<'de> Deserializer<'de> for &mut Decoder<'de> {
    type Error = EncodingError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        match self.marker()? {
            Marker::Null => visitor.visit_unit(),
            Marker::False => visitor.visit_bool(false),
            Marker::True => visitor.visit_bool(true),
            Marker::FixPos(value) => visitor.visit_u8(value),
            Marker::FixNeg(value) => visitor.visit_i8(value),
            Marker::U8 => visitor.visit_u8(u8::from_be_bytes(self.array()?)),
            Marker::U16 => visitor.visit_u16(u16::from_be_bytes(self.array()?)),
            Marker::U32 => visitor.visit_u32(u32::from_be_bytes(self.array()?)),
            Marker::U64 => visitor.visit_u64(u64::from_be_bytes(self.array()?)),
            Marker::I8 => visitor.visit_i8(i8::from_be_bytes(self.array()?)),
            Marker::I16 => visitor.visit_i16(i16::from_be_bytes(self.array()?)),
            Marker::I32 => visitor.visit_i32(i32::from_be_bytes(self.array()?)),
            Marker::I64 => visitor.visit_i64(i64::from_be_bytes(self.array()?)),
            Marker::F32 => visitor.visit_f32(f32::from_be_bytes(self.array()?)),
            Marker::F64 => visitor.visit_f64(f64::from_be_bytes(self.array()?)),
            Marker::FixStr(length) => visitor.visit_borrowed_str(self.text(length.into())?),
            Marker::Str8 => {
                let length = self.length8()?;
                visitor.visit_borrowed_str(self.text(length)?)
            }
            Marker::Str16 => {
                let length = self.length16()?;
                visitor.visit_borrowed_str(self.text(length)?)
            }
            Marker::Str32 => {
                let length = self.length32()?;
                visitor.visit_borrowed_str(self.text(length)?)
            }
            Marker::Bin8 => {
                let length = self.length8()?;
                visitor.visit_borrowed_bytes(self.take(length)?)
            }
            Marker::Bin16 => {
                let length = self.length16()?;
                visitor.visit_borrowed_bytes(self.take(length)?)
            }
            Marker::Bin32 => {
                let length = self.length32()?;
                visitor.visit_borrowed_bytes(self.take(length)?)
            }
            Marker::FixArray(length) => self.list(length.into(), visitor),
            Marker::Array16 => {
                let length = self.length16()?;
                self.list(length, visitor)
            }
            Marker::Array32 => {
                let length = self.length32()?;
                self.list(length, visitor)
            }
            Marker::FixMap(length) => visitor.visit_map(Entries { decoder: self, left: length.into() }),
            Marker::Map16 => {
                let left = self.length16()?;
                visitor.visit_map(Entries { decoder: self, left })
            }
            Marker::Map32 => {
                let left = self.length32()?;
                visitor.visit_map(Entries { decoder: self, left })
            }
            other => Err(unexpected(other, "a value")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        if self.peek() == Some(Marker::Null) {
            self.marker()?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, EncodingError> {
        visitor.visit_newtype_struct(self)
    }

    /// Lists of bytes are byte strings.
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        let length = match self.peek() {
            Some(Marker::Bin8) => self.marker().and_then(|_| self.length8())?,
            Some(Marker::Bin16) => self.marker().and_then(|_| self.length16())?,
            Some(Marker::Bin32) => self.marker().and_then(|_| self.length32())?,
            _ => return self.deserialize_any(visitor),
        };
        let mut bytes = SeqDeserializer::<_, EncodingError>::new(self.take(length)?.iter().copied());
        let value = visitor.visit_seq(&mut bytes)?;
        bytes.end()?;
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, EncodingError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, EncodingError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, EncodingError> {
        self.fields(name, fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        of: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, EncodingError> {
        let has_content = matches!(self.peek(), Some(Marker::FixMap(1)));
        if has_content {
            self.marker()?;
        }
        let written = self.name()?;
        let name = variants.iter().find(|name| **name == written);
        let name = name.ok_or_else(|| EncodingError::new(format!("unknown variant `{written}` of {of}")))?;
        variants.iter().for_each(|variant| (self.observe)(of, variant, variant == name));
        visitor.visit_enum(Variant { decoder: self, of, name, has_content })
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, EncodingError> {
        Err(EncodingError::new("nothing may be ignored"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct map identifier
    }
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de> {
    type Error = EncodingError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, EncodingError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        let value = seed.deserialize(&mut *self.decoder).map_err(|error| error.in_element(self.read))?;
        (self.read, self.left) = (self.read + 1, left);
        Ok(Some(value))
    }

    /// Every element takes a byte at least, so a wrong length cannot reserve much.
    fn size_hint(&self) -> Option<usize> {
        Some(self.left.min(self.decoder.rest.len()))
    }
}

impl<'de> MapAccess<'de> for Entries<'_, 'de> {
    type Error = EncodingError;

    fn next_key_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, EncodingError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(&mut *self.decoder).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, EncodingError> {
        seed.deserialize(&mut *self.decoder)
    }
}

impl Fields<'_, '_> {
    fn name(&self) -> &'static str {
        self.fields.get(self.current).copied().unwrap_or_default()
    }

    /// Makes a field current that was not read and is as wanted. Fields are written in their order,
    /// so the search begins at the current one.
    fn advance(&mut self, is_wanted: impl Fn(&str) -> bool) -> bool {
        for index in (self.current..self.fields.len()).chain(0..self.current) {
            // A struct with more fields than there are bits cannot be read.
            let bit = u32::try_from(index).ok().and_then(|index| 1_u128.checked_shl(index)).unwrap_or(u128::MAX);
            if self.read & bit == 0 && self.fields.get(index).is_some_and(|field| is_wanted(field)) {
                (self.current, self.read) = (index, self.read | bit);
                return true;
            }
        }
        false
    }
}

impl<'de> MapAccess<'de> for Fields<'_, 'de> {
    type Error = EncodingError;

    fn next_key_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, EncodingError> {
        if self.left > 0 {
            let written = self.decoder.name()?;
            if !self.advance(|field| field == written) {
                return Err(EncodingError::new(format!("unknown or repeated field `{written}` of {}", self.of)));
            }
        } else if !self.advance(|_| true) {
            return Ok(None);
        }
        (self.decoder.observe)(self.of, self.name(), self.left > 0);
        seed.deserialize(BorrowedStrDeserializer::new(self.name())).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, EncodingError> {
        let Some(left) = self.left.checked_sub(1) else {
            let missing = |_| EncodingError::new(format!("missing field `{}` of {}", self.name(), self.of));
            return seed.deserialize(Zero { observe: self.decoder.observe }).map_err(missing);
        };
        self.left = left;
        seed.deserialize(&mut *self.decoder).map_err(|error| error.in_field(self.name()))
    }
}

impl<'de> EnumAccess<'de> for Variant<'_, 'de> {
    type Error = EncodingError;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), EncodingError> {
        Ok((seed.deserialize(BorrowedStrDeserializer::<EncodingError>::new(self.name))?, self))
    }
}

impl Variant<'_, '_> {
    fn content(&self) -> Result<(), EncodingError> {
        if self.has_content {
            return Ok(());
        }
        Err(EncodingError::new(format!("the variant `{}` of {} has no content", self.name, self.of)))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, 'de> {
    type Error = EncodingError;

    fn unit_variant(self) -> Result<(), EncodingError> {
        if self.has_content {
            return Err(EncodingError::new(format!("the variant `{}` of {} has content", self.name, self.of)));
        }
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, EncodingError> {
        self.content()?;
        seed.deserialize(&mut *self.decoder).map_err(|error| error.in_field(self.name))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, EncodingError> {
        self.content()?;
        self.decoder.deserialize_seq(visitor).map_err(|error| error.in_field(self.name))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, EncodingError> {
        self.content()?;
        self.decoder.fields(self.name, fields, visitor).map_err(|error| error.in_field(self.name))
    }
}

impl<'de> Deserializer<'de> for Zero {
    type Error = EncodingError;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, EncodingError> {
        Err(EncodingError::new("it has no zero value"))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_bool(false)
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_i8(0)
    }

    fn deserialize_i16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_i8(0)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_i8(0)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_i8(0)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_u8(0)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_u8(0)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_u8(0)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_u8(0)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_f32(0.0)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_f64(0.0)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_borrowed_str("")
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_borrowed_str("")
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_borrowed_bytes(&[])
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_borrowed_bytes(&[])
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_none()
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, EncodingError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        Decoder { rest: &[], observe: self.observe }.list(0, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, EncodingError> {
        visitor.visit_map(Entries { decoder: &mut Decoder { rest: &[], observe: self.observe }, left: 0 })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, EncodingError> {
        let mut nothing = Decoder { rest: &[], observe: self.observe };
        visitor.visit_map(Fields { decoder: &mut nothing, left: 0, of: name, fields, read: 0, current: 0 })
    }

    forward_to_deserialize_any! { i128 u128 char tuple tuple_struct enum identifier ignored_any }
}

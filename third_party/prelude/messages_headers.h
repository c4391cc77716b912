// Headers that generated messages include besides product_headers.h, precompiled (see BUILD). No
// source relies on it: each includes what it uses.
#ifndef ATOLL_THIRD_PARTY_PRELUDE_MESSAGES_HEADERS_H_
#define ATOLL_THIRD_PARTY_PRELUDE_MESSAGES_HEADERS_H_

#include <google/protobuf/arena.h>
#include <google/protobuf/arenastring.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/extension_set.h>
#include <google/protobuf/generated_enum_reflection.h>
#include <google/protobuf/generated_message_reflection.h>
#include <google/protobuf/generated_message_util.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/map.h>
#include <google/protobuf/map_entry.h>
#include <google/protobuf/map_field_inl.h>
#include <google/protobuf/message.h>
#include <google/protobuf/metadata_lite.h>
#include <google/protobuf/reflection_ops.h>
#include <google/protobuf/repeated_field.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/wire_format.h>

#include "third_party/prelude/product_headers.h"

#endif  // ATOLL_THIRD_PARTY_PRELUDE_MESSAGES_HEADERS_H_

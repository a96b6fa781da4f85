// The files of a recording as JSON. Internal to tuner/recording.
#pragma once

#include "tuner/recording.h"

namespace ft {

OrderedJson machine_to_json(const RecordedMachine& machine);
OrderedJson inputs_to_json(const Recording& recording);
OrderedJson decision_to_json(const RecordedDecision& decision);

// REQUIRE json that its schema accepts. Throw Error(kUsage) for what a schema cannot say; `source` names the file.
RecordedMachine parse_machine(const Json& json);
void parse_inputs(const Json& json, const std::string& source, Recording& recording);
RecordedDecision parse_decision(const Json& json);

}  // namespace ft

"""1,024 common English words that, after a space, are one token each in the usual vocabularies.

Checked against cl100k, o200k, GPT-2, Llama 2, Llama 3 and Mistral 7B: N of them joined by spaces are N tokens there,
give or take the first word, which has no space before it. Other vocabularies differ: `usage.prompt_tokens` tells.

The order is part of the plan (a seed draws words by position): never insert or remove a word.
"""

_LIST = """
able about above across act action active actual add address after again against age ago agree air all allow almost
alone along already also always among amount and animal annual another answer any anyone appear apple apply area
argue arm around arrive art article ask assume attempt attend author average avoid away baby back bag ball band bank
bar base basic bear beat because become bed before begin behind believe below benefit best better between beyond big
bill bird birth bit black block blue board boat body book border born both bottom box boy brain branch bread break
bridge bright bring broad broken brother brown build bus busy but buy call came camera camp can cap capital car card
care career carry case cast cat catch cause cell center central century certain chair chance change charge cheap
check chief child choice choose church circle city civil claim class clean clear client climate clock close cloud
club coach coast code coffee cold collect college color column come comfort common company compare concern contact
contain control cook cool copy corner cost could council count country county couple course court cover create cross
crowd culture cup current cut daily dance dark data date day deal debate decide deep degree deliver demand depend
depth desert design detail develop device dialog dinner direct discuss divide doctor dog door double doubt down
draft draw dream dress drink drive drop dry due during dust duty each early earth east easy eat economy edge editor
effect effort egg eight either else employ empty end energy engine enjoy enough enter entire equal error escape even
evening event ever every exact example except exist expect expert explain express eye face fact factor fail fair
faith fall false family famous far farm fast father feature feed feel few field fight figure file fill film final
find fine finger finish fire firm first fish fit five fix flat flight floor flow flower fly focus follow food foot
for force foreign forest forget form former forward found four frame free fresh friend from front fruit fuel full
fun fund future game garden gas gate gather general gentle get gift girl give glad glass global goal gold good grand
grant grass gray great green ground group grow growth guess guide hair half hall hand happen happy hard hat have
head health hear heart heat heavy height help her here hero hidden high hill him his history hold hole home honor
hope horse host hot hotel hour house how huge human hundred husband ice idea image impact import improve include
income indeed index inside instead into iron island issue item job join joint journey judge jump just keep key kid
kind king kitchen know labor lack lady lake land large last late laugh launch law layer lead leader learn least
leave left leg length less let letter level library life lift light like limit line link lip list listen little live
local lock long look lose loss lost lot loud love low luck machine magic mail main major make man manage manner many
map march mark market marry mass match matter may maybe mean measure meat media medical meet member memory mental
menu message metal method middle might mile milk mind mine minor minute mirror miss mission mix model modern moment
money month moon more morning most mother motion mouse mouth move movie much music must name narrow nation native
natural nature near neck need network never new news next nice night nine noise none normal north nose note nothing
notice novel now number object ocean odd off offer office officer often oil old once one only open opinion option
orange order other our out outside over own owner pace pack page paint pair palace paper parent park part partner
party pass past path patient pattern pause pay peace people per percent perfect perhaps period person phone photo
phrase piano pick piece pilot pipe place plain plan plane planet plant plate play player please plenty pocket poem
poet point police policy pool port post power prefer press pretty price pride prime print prize proof proper proud
prove public pull pure push put queen quick quiet quite radio rail rain raise range rapid rate rather reach read
ready real reason recent record red reduce refer region relate rely remain remove repeat reply report rest result
return review rice rich ride right ring rise river road rock role roll roof room root rough round route row royal
rule run rural safe sail salt same sample sand save say scale scene school score sea search season seat second see
seed seek seem self sell send senior sense series serve set seven shadow shape share sharp she sheet shell shift
ship shock shop shore short should show side sight sign silent silver simple since sing single sister sit site six
size skill skin sky sleep slight slow small smart smile smoke smooth snow social soft soil some son song soon sort
soul sound source south space speak speed spend spirit split sport spot spread spring square stage stand star start
state stay steel step stick still stock stone stop store storm story stream street strong study stuff style such
sugar suit summer sun supply sure sweet switch symbol system table take tale talk tall target task taste tea teach
team tell ten term test text than thank that the their them then theory there thick thin thing think third this
those though three throw thus ticket tie tight time tiny tip title today tone too tool top topic total touch tour
toward tower town track trade train travel treat tree trial trick trip true trust truth try turn twelve twenty twice
two type under union unit until upon upper use useful user usual valley value vast very video view vision visit
voice vote wait walk wall want warm watch water wave way wealth wear week weight well west wet what wheel when where
which while white who whole why wide wife wild will win wind window wine wing winter wire wise wish with within
woman wonder wood word work world worth would write yard year yellow yes yet young your youth zero zone
"""

WORDS: tuple[str, ...] = tuple(_LIST.split())
